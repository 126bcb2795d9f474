"""Beam search that charges each finished hypothesis for the source words it did not attend to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from ..attention import SupportCount, attention_sites


@dataclass(frozen=True)
class CoveragePenalty:
    """For ``model.generate(..., num_beams=k, custom_generate=CoveragePenalty(...))``: a finished hypothesis scores

    ``log p(y | x) / lp(y) + beta sum_j log max(epsilon, min(1, sum_t a_tj))``, ``lp(y) = ((5 + |y|) / 6)^alpha``

    with ``a_tj`` the attention of target word t to source word j, averaged over heads and layers of cross-attention,
    and ``|y|`` the number of generated tokens, end included. Hypotheses still open are compared by ``log p`` alone.

    The model must be one that ``sparsify`` made, with any map in its cross-attention; for plain softmax use
    ``sparsify(model, attn={"cross": "softmax"})``. ``output_scores`` then shows these scores.

    Attributes:
        beta: weight of the coverage penalty, at least 0.
        alpha: exponent of the length penalty, at least 0; it takes the place of ``length_penalty``.
        epsilon: least coverage, in (0, 1], so that words without any attention cost a finite amount.

    Source: Wu et al. 2016, "Google's Neural Machine Translation System", Eq. 14, with the epsilon of Malaviya et al.
    2018, Section 5.

    With ``alpha`` 0 the search never stops before the best score is found among the hypotheses it keeps, because the
    penalty is never a bonus; with more, stopping follows Transformers' own rule (``early_stopping="never"`` here).
    """

    beta: float = 0.2
    alpha: float = 0.0
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        for name in ("beta", "alpha"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, was {getattr(self, name)}")
        if not 0 < self.epsilon <= 1:
            raise ValueError(f"epsilon must be in (0, 1], was {self.epsilon}")

    def length_penalty(self, length: int) -> float:
        """``lp`` of a hypothesis of ``length`` tokens."""
        return ((5 + length) / 6) ** self.alpha

    def coverage_penalty(self, attended: Tensor, source_mask: Tensor) -> Tensor:
        """``beta sum_j log max(epsilon, min(1, attended_j))``, at most 0.

        Args:
            attended: (..., sources) attention each source word received from all target words.
            source_mask: (..., sources), 0 at padding.

        Returns:
            (...) penalties in nats.
        """
        return self.beta * (attended.clamp(self.epsilon, 1.0).log() * (source_mask > 0)).sum(-1)

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        """Decode; called by ``generate``.

        Raises:
            ValueError: no beams, sampling, a length penalty of Transformers' own, no end token, or a model without
                cross-attention sites or a source mask.
        """
        config = generation_config
        if config.num_beams < 2 or config.do_sample:
            raise ValueError(
                f"CoveragePenalty needs num_beams >= 2 and do_sample=False, was {config.num_beams} and "
                f"{config.do_sample}"
            )
        if config.length_penalty not in (None, 0.0, 1.0):
            raise ValueError(f"CoveragePenalty has its own length penalty, alpha; was {config.length_penalty} besides")
        if config._eos_token_tensor is None:
            raise ValueError("generation_config.eos_token_id is None: no hypothesis ever finishes")
        mask = model_kwargs.get("attention_mask")
        if mask is None:
            raise ValueError("CoveragePenalty needs the attention_mask of the source; pass it to generate")
        # GenerationConfig's own defaults (early_stopping=False, length_penalty=1) stop early and divide by length.
        config.length_penalty, config.early_stopping = 0.0, "never"
        with _recorded(model) as attention:
            scorer = _Scorer(self, attention, mask, config)
            processors = LogitsProcessorList([*logits_processor, scorer])
            return model._beam_search(input_ids, processors, stopping_criteria, config, **model_kwargs)


@dataclass
class _Recorded(SupportCount):
    """Sums attention weights of the newest query over the sites that report here, until they are taken."""

    total: Any = 0.0
    taken_from: int = 0

    def add(self, weights: Tensor, head_dim: int = 0) -> None:
        """Add (batch, heads, queries, keys) weights, averaged over heads, of the last query."""
        self.total = self.total + weights[:, :, -1].float().mean(1)
        self.taken_from += 1

    def take(self) -> Tensor:
        """The mean over the sites that reported since the last call: (batch, keys)."""
        mean = self.total / self.taken_from
        self.total, self.taken_from = 0.0, 0
        return mean


@contextmanager
def _recorded(model: PreTrainedModel) -> Iterator[_Recorded]:
    sites = [site for _, site in attention_sites(model) if site.kind == "cross"]
    if not sites:
        raise ValueError(
            f"{type(model).__name__} has no cross-attention to read: it must be an encoder-decoder made by "
            'sparsify(model, attn={"cross": ...}), where "softmax" keeps it as it is'
        )
    recorded, before = _Recorded(), [site.counts for site in sites]
    for site in sites:
        site.counts = recorded
    try:
        yield recorded
    finally:
        for site, counts in zip(sites, before):
            site.counts = counts


class _Scorer(LogitsProcessor):
    """Makes the log-probability of ending such that its sum with the others is the score of the finished hypothesis.

    Beam search hands on prefixes and not where they came from. Open hypotheses of one sentence differ, so each one's
    parent is the hypothesis of the step before that it extends; copies are possible only in beams that search has
    given a score of -1e9, and those come after the one that counts.
    """

    start: int  # tokens before the first generated one
    log_probs: Tensor  # of the last step
    running: Tensor  # log p of each open hypothesis
    attended: Tensor  # what its source tokens have received

    def __init__(self, penalty: CoveragePenalty, attention: _Recorded, source_mask: Tensor, config: Any) -> None:
        self.penalty, self.attention, self.source_mask, self.config = penalty, attention, source_mask, config
        self.prefixes: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Log-probabilities of the next tokens, those that finish a hypothesis replaced."""
        attended = self.attention.take()
        if self.prefixes is None:
            self.start = input_ids.shape[1]
            running = scores.new_zeros(len(scores))
        else:
            parent = _parents(input_ids[:, :-1], self.prefixes, self.config.num_beams)
            running = self.running[parent] + self.log_probs[parent, input_ids[:, -1]]
            attended = attended + self.attended[parent]
        self.prefixes, self.log_probs, self.running, self.attended = input_ids, scores, running, attended
        length = input_ids.shape[1] + 1
        lp = self.penalty.length_penalty(length - self.start)
        cp = self.penalty.coverage_penalty(attended, self.source_mask)
        finished = ((running[:, None] + scores) / lp + cp[:, None]) - running[:, None]
        if length >= self.config.max_length:
            return finished
        ends = torch.isin(torch.arange(scores.shape[1], device=scores.device), self.config._eos_token_tensor)
        return torch.where(ends, finished, scores)


def _parents(prefixes: Tensor, earlier: Tensor, beams: int) -> Tensor:
    """For each of (rows, length) prefixes the first row of ``earlier``, of the same sentence, that is equal to it."""
    now, before = (ids.unflatten(0, (-1, beams)) for ids in (prefixes, earlier))
    equal = (now[:, :, None] == before[:, None]).all(-1)  # (sentences, beams now, beams before)
    first = torch.arange(len(now), device=now.device) * beams
    return (equal.int().argmax(-1) + first[:, None]).flatten()
