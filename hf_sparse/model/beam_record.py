"""Beam search over sparse distributions: its settings, kept with its output, what it draws, and where it may end."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import EosTokenCriteria, GenerationConfig, MaxLengthCriteria, PreTrainedModel, StoppingCriteriaList
from transformers.utils import ModelOutput

from ..functional.log_zero import LOG_ZERO
from .find import sparse_state

_RECORD = "_hf_sparse_beam_search"
_has_floor: ContextVar[bool] = ContextVar(
    "a beam search in which a floor stands for the logarithm of zero", default=False
)


@dataclass(frozen=True)
class BeamRecord:
    """The settings of one beam search.

    Attributes:
        ends: the tokens that ended a string.
        num_beams: beams per sentence.
        sampled: whether beams were drawn.
        trained: whether a module was in training mode, where outputs are random.
        stopped_by: the names of stopping criteria other than end tokens and length.
        scores: of all beams at every step, where ``generate`` returns those of its sequences alone.
    """

    ends: tuple[int, ...]
    num_beams: int
    sampled: bool
    trained: bool
    stopped_by: tuple[str, ...]
    scores: tuple[Tensor, ...] | None = field(default=None, repr=False)


def record_of(output: ModelOutput) -> BeamRecord | None:
    """The record of the search that returned ``output``, if it has one."""
    return getattr(output, "__dict__", {}).get(_RECORD)


def forget(output: Tensor | ModelOutput) -> Tensor | ModelOutput:
    """``output`` without a record, for a search whose scores are no log-probabilities."""
    getattr(output, "__dict__", {}).pop(_RECORD, None)
    return output


def recorded_beam_search(
    original: Callable[..., Any],
    self: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **model_kwargs: Any,
) -> Any:
    """``GenerationMixin._beam_search``, with a record on its output."""
    has_floor = any(getattr(each, "has_floor", False) for each in (logits_processor, *logits_processor))
    before = _has_floor.set(has_floor)
    try:
        output = original(self, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)
    finally:
        _has_floor.reset(before)
    if isinstance(output, ModelOutput):
        ends = getattr(generation_config, "_eos_token_tensor", None)
        vars(output)[_RECORD] = BeamRecord(
            ends=() if ends is None else tuple(torch.as_tensor(ends, device="cpu").flatten().tolist()),
            num_beams=generation_config.num_beams or 1,
            sampled=bool(generation_config.do_sample),
            trained=any(module.training for module in self.modules()),
            stopped_by=tuple(
                type(each).__name__
                for each in stopping_criteria
                if not isinstance(each, EosTokenCriteria | MaxLengthCriteria)
            ),
        )
    return output


def draw_allowed_continuations(
    original: Callable[..., Any],
    self: PreTrainedModel,
    *,
    accumulated_log_probs: Tensor,
    do_sample: bool,
    **others: Any,
) -> Any:
    """``GenerationMixin._get_top_k_continuations``, which draws none that is forbidden while others are left.

    It draws from softmax, which is zero for all but the few possible continuations, and fills up with any zeros. The K
    largest of ``log p + Gumbel noise`` have the law of K draws without replacement, and forbidden ones come last.

    Args:
        original: the method.
        self: the model.
        accumulated_log_probs: (B, beams * V) log-probabilities of all continuations, minus infinity where forbidden.
        do_sample: whether continuations are drawn.
        **others: for the method; ``beams_to_keep`` is K.

    Source: Kool et al. 2019, Stochastic beams and where to find them, the Gumbel-top-k trick.
    """
    if do_sample and _has_floor.get():
        noise = torch.empty_like(accumulated_log_probs).exponential_().log_()
        drawn = (accumulated_log_probs - noise).topk(others["beams_to_keep"], dim=-1).indices
        left = torch.full_like(accumulated_log_probs, -torch.inf)
        accumulated_log_probs = left.scatter(-1, drawn, accumulated_log_probs.gather(-1, drawn))
        do_sample = False
    return original(self, accumulated_log_probs=accumulated_log_probs, do_sample=do_sample, **others)


def end_possible_strings(
    original: Callable[..., Any],
    self: PreTrainedModel,
    *,
    topk_log_probs: Tensor,
    next_token_hits_stopping_criteria: Tensor,
    **others: Any,
) -> Any:
    """``GenerationMixin._update_finished_beams``: no string of probability zero ends while a possible one is open.

    Sparse heads leave fewer possible continuations than beam search takes, so that it takes others too. Those that end
    would count among the ``num_beams`` strings with which ``early_stopping=True`` stops.

    Args:
        original: the method.
        self: the model.
        topk_log_probs: (B, K) log-probabilities of the best continuations, not divided by a length yet.
        next_token_hits_stopping_criteria: (B, K) whether they end.
        **others: for the method.
    """
    ends = next_token_hits_stopping_criteria
    if _has_floor.get():
        possible = topk_log_probs > LOG_ZERO / 2
        ends = ends & (possible | ~(possible & ~ends).any(-1, keepdim=True))
    return original(self, topk_log_probs=topk_log_probs, next_token_hits_stopping_criteria=ends, **others)


def _postprocess_outputs(self: Any, seek_outputs: Any, *args: object, **kwargs: object) -> Any:
    """Whisper's own, which cuts the scores of its sequences out; those of all beams are kept aside."""
    if isinstance(seek_outputs, ModelOutput):
        sparse_state(self).calls.searches.append(seek_outputs)
    return self._dense_class._postprocess_outputs(self, seek_outputs, *args, **kwargs)


def _stack_split_outputs(self: Any, *args: object, **kwargs: object) -> Any:
    """Whisper's own, with the record of its search where there was one alone: no fallback to another temperature."""
    output = self._dense_class._stack_split_outputs(self, *args, **kwargs)
    searches = sparse_state(self).calls.searches
    record = record_of(searches[0]) if len(searches) == 1 else None
    if record is not None and isinstance(output, ModelOutput):
        vars(output)[_RECORD] = replace(record, scores=searches[0].get("scores"))
    return output
