"""Beam search with a penalty on source words that a finished hypothesis did not attend to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.utils import ModelOutput

from ..attention import attention_sites
from ..attention.observer import AttentionObserver
from ..attention.site import observing
from ..functional.arguments import check_number
from ..model.beam_record import forget


@dataclass(frozen=True)
class CoveragePenalty:
    """Beam search in which the score of a finished hypothesis is

    ``log p(y | x) / lp(y) + beta sum_j log max(epsilon, min(1, sum_t a_tj))``, ``lp(y) = ((5 + |y|) / 6)^alpha``

    with ``a_tj`` the attention of target word t to source word j, averaged over heads and layers of cross-attention,
    and ``|y|`` the number of generated tokens, end included. Open hypotheses are compared by ``log p`` alone. It runs
    inside ``generate``: ``model.generate(..., num_beams=k, custom_generate=CoveragePenalty(...))``.

    The model must be one that ``sparsify`` made, with any map in its cross-attention; for plain softmax use
    ``sparsify(model, attn={"cross": "softmax"})``. ``output_scores`` then shows these scores.

    Attributes:
        beta: weight of the coverage penalty, at least 0.
        alpha: exponent of the length penalty, at least 0; it replaces ``length_penalty``.
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
            check_number(name, getattr(self, name), "finite and at least 0", lambda number: 0 <= number < math.inf)
        check_number("epsilon", self.epsilon, "in (0, 1]", lambda epsilon: 0 < epsilon <= 1)

    def length_penalty(self, length: int) -> float:
        """``lp`` of a hypothesis of ``length`` tokens."""
        return ((5 + length) / 6) ** self.alpha

    def coverage_penalty(self, attended: Tensor, source_mask: Tensor) -> Tensor:
        """``beta sum_j log max(epsilon, min(1, attended_j))``, at most 0.

        Args:
            attended: (..., sources) attention that each source word received from all target words.
            source_mask: (..., sources), 0 at padding.

        Returns:
            (...) penalties in nats.
        """
        return self.beta * (attended.clamp(self.epsilon, 1.0).log() * (source_mask > 0)).sum(-1)

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: object,
    ) -> Tensor | ModelOutput:
        """Decode; called by ``generate``.

        Raises:
            ValueError: no beams, sampling, Transformers' own length penalty, no end token, no source mask, or a model
                without sparse cross-attention.
        """
        config = generation_config
        if config.num_beams < 2 or config.do_sample:
            raise ValueError(
                f"CoveragePenalty needs num_beams >= 2 and do_sample=False, was {config.num_beams} and "
                f"{config.do_sample}"
            )
        if config.length_penalty not in (None, 0.0, 1.0):
            raise ValueError(
                f"CoveragePenalty has its own length penalty, alpha; leave out length_penalty={config.length_penalty}"
            )
        if config._eos_token_tensor is None:
            raise ValueError("generation_config.eos_token_id is None: no hypothesis ever ends; set it")
        mask = model_kwargs.get("attention_mask")
        if not isinstance(mask, Tensor):
            raise ValueError("CoveragePenalty needs the attention_mask of the source; pass it to generate")
        # GenerationConfig's own defaults (early_stopping=False, length_penalty=1) stop early and divide by length.
        config.length_penalty, config.early_stopping = 0.0, "never"
        with _recorded_attention(model) as received:
            scorer = _Scorer(self, received, mask, config)
            processors = LogitsProcessorList([*logits_processor, scorer])
            return forget(model._beam_search(input_ids, processors, stopping_criteria, config, **model_kwargs))


@dataclass
class _ReceivedAttention(AttentionObserver):
    """Collects the attention weights of the last query from every site, until they are taken."""

    reports: list[Tensor] = field(default_factory=list)

    def add(self, module: nn.Module, scores: Tensor, weights: Tensor) -> None:
        """Record the last query's weights, (batch, heads, queries, keys) averaged over heads."""
        self.reports.append(weights[:, :, -1].float().mean(1))

    def take(self) -> Tensor:
        """The mean (batch, keys) over the sites that reported since the last call."""
        mean = sum(self.reports[1:], self.reports[0]) / len(self.reports)
        self.reports.clear()
        return mean


@contextmanager
def _recorded_attention(model: PreTrainedModel) -> Iterator[_ReceivedAttention]:
    """Have every site of cross-attention report here."""
    sites = [site for _, site in attention_sites(model) if site.kind == "cross"]
    if not sites:
        raise ValueError(
            f"{type(model).__name__} has no cross-attention to read; give an encoder-decoder made by "
            'sparsify(model, attn={"cross": ...}), where "softmax" keeps it as it is'
        )
    received = _ReceivedAttention()
    with observing((site, received) for site in sites):
        yield received


class _Scorer(LogitsProcessor):
    """Replaces the log-probability of ending, so that a finished hypothesis sums to its score.

    Beam search passes prefixes without their parents. Open hypotheses of one sentence differ, so the parent of each is
    the hypothesis of the last step that it extends; only beams that search has given a score of -1e9 may hold copies,
    and those come after the hypothesis that counts.
    """

    start: int  # number of tokens before the first generated one
    log_probs: Tensor  # of the last step
    running: Tensor  # log p of each open hypothesis
    attended: Tensor  # attention that its source tokens have received

    def __init__(
        self, penalty: CoveragePenalty, received: _ReceivedAttention, source_mask: Tensor, config: GenerationConfig
    ) -> None:
        self.penalty, self.received, self.source_mask, self.config = penalty, received, source_mask, config
        self.prefixes: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Log-probabilities of the next tokens, replaced for tokens that finish a hypothesis."""
        attended = self.received.take()
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
    """The first row of ``earlier``, of the same sentence, that equals each of the prefixes (rows, length)."""
    now, before = (ids.unflatten(0, (-1, beams)) for ids in (prefixes, earlier))
    equal = (now[:, :, None] == before[:, None]).all(-1)  # (sentences, beams now, beams before)
    first = torch.arange(len(now), device=now.device) * beams
    return (equal.int().argmax(-1) + first[:, None]).flatten()
