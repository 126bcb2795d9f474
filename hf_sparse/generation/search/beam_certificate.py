"""The proof that beam search can give of its own result, from the scores that ``generate`` returns."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from ...functional.log_zero import without_floor
from ...model.beam_record import BeamRecord, record_of
from ._constraints import check_sums
from .result import Hypothesis, SearchResult

# Transformers' beam search adds this to a score that must not be chosen.
NEVER = -1e9


@torch.no_grad()
def beam_certificate(model: PreTrainedModel, output: ModelOutput, num_beams: int) -> list[SearchResult]:
    """Replay a beam search and prove how good its result is.

    Beam search is exact if it never dropped a prefix of nonzero probability; an entmax model often leaves few enough.
    Otherwise the likeliest prefix dropped bounds the strings that were missed.

    Args:
        model: the model that generated.
        output: of ``model.generate(..., num_beams=num_beams, do_sample=False, return_dict_in_generate=True,
            output_scores=True)``. It remembers the end tokens of that call, from the generation config or from the
            options.
        num_beams: as passed to ``generate``.

    Returns:
        One ``SearchResult`` per sentence. Its hypotheses are all strings of nonzero probability that the beam ended,
        likeliest first: under a length penalty ``output.sequences`` may prefer another. ``ended_by`` is
        ``"num_beams"`` if a dropped prefix prevents the proof, ``"max_new_tokens"`` if a prefix does that was still
        open when ``generate`` stopped.

    Raises:
        ValueError: no scores in ``output``, no record of a beam search (Whisper's generate has several, with
            fallback temperatures or more than one segment), no end token, another number of beams or sentences,
            sampled beams, a model in training mode, another stopping criterion than end tokens and length, NaN, a
            processor that makes probabilities sum to more than 1, or tied scores that the search resolved in another
            way than its replay.

    Source: Peters et al. 2019, Section 4.1.

    Cost: one pass over the scores, no forward pass.
    """
    record = _checked_record(model, output, num_beams)
    all_scores = record.scores or output.scores
    rows = len(all_scores[0])
    if rows % num_beams or len(output.sequences) % (rows // num_beams):
        raise ValueError(f"the scores are for {rows} beams in all: that is not num_beams={num_beams} per sentence")
    ends = torch.tensor(record.ends, device=all_scores[0].device)
    beams = _Beams(rows // num_beams, num_beams, ends)
    for scores in all_scores:
        if scores.isnan().any():
            raise ValueError("the scores hold NaN, so nothing can be proved; look at the model's weights and inputs")
        check_sums(scores)
        beams.step(scores)
    _check_returned(output, all_scores, beams)
    return beams.results()


def _checked_record(model: PreTrainedModel, output: ModelOutput, num_beams: int) -> BeamRecord:
    """The record of a search that can be replayed."""
    if getattr(output, "scores", None) is None or getattr(output, "beam_indices", None) is None:
        raise ValueError(
            "output has no beam scores; call generate with num_beams above 1, return_dict_in_generate=True and "
            "output_scores=True"
        )
    record = record_of(output)
    if record is None:
        raise ValueError(
            f"output does not come from {type(model).__name__}'s beam search as it was: Whisper's generate searches "
            "more than once with fallback temperatures and segments, CoveragePenalty changes scores; for a proof call "
            "exact_search(model, inputs)"
        )
    if not record.ends:
        raise ValueError("generate had no eos_token_id: no string ever ends; set it to the end token")
    if record.num_beams != num_beams:
        raise ValueError(f"num_beams was {num_beams}, and the search had {record.num_beams} beams per sentence")
    if record.trained:
        raise ValueError(
            "the model was in training mode, where outputs are random, so nothing can be proved; call model.eval() "
            "before generate"
        )
    if record.sampled or record.stopped_by:
        how = "sampled (do_sample=True)" if record.sampled else f"stopped by {', '.join(record.stopped_by)}"
        raise ValueError(
            f"the beams were {how}, so nothing can be proved; pass do_sample=False, and stop by end tokens and length"
        )
    return record


class _Beams:
    """Beam search as in Transformers, with the same float32 scores, and an account of the prefixes it drops.

    Args:
        num_sentences: number of sentences, B.
        num_beams: beams per sentence.
        ends: (E,) the tokens that end a string.
    """

    def __init__(self, num_sentences: int, num_beams: int, ends: Tensor) -> None:
        self.num_beams, self.ends = num_beams, ends
        self.scores = torch.full((num_sentences, num_beams), NEVER, dtype=torch.float32, device=ends.device)
        self.scores[:, 0] = 0
        self.log_mass = self.scores.double().masked_fill(self.scores == NEVER, -math.inf)  # of what is impossible
        self.tokens = torch.empty(num_sentences, num_beams, 0, dtype=torch.long, device=ends.device)
        self.found: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]
        self.dropped_mass = torch.zeros(num_sentences, dtype=torch.float64, device=ends.device)
        self.dropped_bound = torch.full_like(self.dropped_mass, -math.inf)
        self.num_expanded = torch.zeros(num_sentences, dtype=torch.long, device=ends.device)
        self.tied = torch.zeros(num_sentences, dtype=torch.bool, device=ends.device)
        self.kept = self.tokens  # of the last step: where length cuts, any of them is returned

    def step(self, log_p: Tensor) -> None:
        """Continue by the log-probabilities (sentences * beams, V) of the next token."""
        num_sentences, num_beams = self.scores.shape
        log_p = log_p.view(num_sentences, num_beams, -1)
        self.num_expanded += (self.log_mass > -math.inf).sum(-1)
        longer = (log_p + self.scores[:, :, None]).flatten(1)
        log_mass = (without_floor(log_p) + self.log_mass[:, :, None]).flatten(1)
        num_kept = max(2, 1 + len(self.ends)) * num_beams
        kept_scores, kept = longer.topk(num_kept)
        parents, tokens = kept // log_p.shape[-1], kept % log_p.shape[-1]
        kept_mass = log_mass.gather(1, kept)
        possible = (kept_mass > -math.inf)[:, :-1]
        self.tied |= ((kept_scores[:, 1:] == kept_scores[:, :-1]) & possible).any(-1)
        ended = torch.isin(tokens, self.ends)
        # As in Transformers, strings that end beyond the first num_beams are skipped.
        found = ended & (torch.arange(num_kept, device=ended.device) < num_beams)
        found &= kept_mass > -math.inf
        strings = torch.cat(
            [self.tokens.gather(1, parents[:, :, None].expand(-1, -1, self.tokens.shape[2])), tokens[:, :, None]],
            dim=2,
        )
        self.kept = strings
        for i, k in found.nonzero().tolist():
            self.found[i].append(Hypothesis(strings[i, k].tolist(), float(kept_mass[i, k])))
        self.scores, running = (kept_scores + ended * NEVER).topk(num_beams)
        self.log_mass = kept_mass.masked_fill(ended, -math.inf).gather(1, running)
        self.tokens = strings.gather(1, running[:, :, None].expand(-1, -1, strings.shape[2]))
        seen = found | torch.zeros_like(found).scatter(1, running, True) & ~ended
        self._drop(log_mass.scatter(1, kept, kept_mass.masked_fill(seen, -math.inf)))

    def _drop(self, log_mass: Tensor) -> None:
        self.dropped_mass += log_mass.exp().sum(-1)
        self.dropped_bound = self.dropped_bound.maximum(log_mass.amax(-1))

    def results(self) -> list[SearchResult]:
        """One result per sentence; prefixes still open are left."""
        open_bound, open_mass = self.log_mass.amax(-1), self.log_mass.exp().sum(-1)
        results = []
        for i, found in enumerate(self.found):
            found.sort(key=lambda hypothesis: -hypothesis.log_probability)
            dropped, left = float(self.dropped_bound[i]), float(open_bound[i])
            best = found[0].log_probability if found else -math.inf
            proved = max(dropped, left) <= best
            results.append(
                SearchResult(
                    hypotheses=found,
                    finished_mass=sum(hypothesis.probability for hypothesis in found),
                    left_mass=float(self.dropped_mass[i] + open_mass[i]),
                    log_bound=max(dropped, left),
                    num_expanded=int(self.num_expanded[i]),
                    ended_by=None if proved else ("num_beams" if dropped >= left else "max_new_tokens"),
                )
            )
        return results


def _check_returned(output: ModelOutput, all_scores: tuple[Tensor, ...], beams: _Beams) -> None:
    """Refuse strings, ended or cut at the longest length, that the replay does not have."""
    lengths = (output.beam_indices >= 0).sum(-1).tolist()
    strings = output.sequences[:, output.sequences.shape[1] - output.beam_indices.shape[1] :].tolist()
    for row, (string, length) in enumerate(zip(strings, lengths)):
        sentence = row * len(beams.found) // len(strings)
        known = [hypothesis.tokens for hypothesis in beams.found[sentence]] + beams.kept[sentence].tolist()
        if _has_probability(all_scores, output.beam_indices[row], string[:length]) and string[:length] not in known:
            reason = (
                "two continuations had exactly the same score, and the search kept another of them than its replay"
                if beams.tied[sentence]
                else "the sequences are not those of a beam search over these scores"
            )
            raise ValueError(
                f"{reason} (sentence {sentence}), so nothing can be proved; exact_search(model, inputs) gives a proof"
            )


def _has_probability(all_scores: tuple[Tensor, ...], path: Tensor, string: list[int]) -> bool:
    """Whether a returned string has nonzero probability: beam search fills up with others."""
    steps = zip(all_scores, path.tolist(), string)
    return bool(string) and all(bool(without_floor(scores[beam, token]) > -math.inf) for scores, beam, token in steps)
