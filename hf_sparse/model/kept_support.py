"""Processors of ``generate`` over a sparse distribution: what has probability zero keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from ..functional.log_zero import LOG_ZERO

_GUIDANCE = tuple(cls for name, cls in vars(logits_process).items() if "ClassifierFreeGuidance" in name)
# Transformers' others answer the same when they are asked again in the same step.
_WITH_STATE = (
    logits_process.SynthIDTextWatermarkLogitsProcessor,
    logits_process.DiaEOSDelayPatternLogitsProcessor,
)


class KeptSupport(LogitsProcessorList):
    """Processors in order, after which no token is likelier for having had probability zero before.

    What they add or multiply acts on probabilities, and zero stays zero. The ``-10,000`` in the place of its logarithm
    would not, under a penalty that grows with the length or a bias that is meant to be large. Only where constraints
    leave no other token do scores of such tokens stand as the processors made them.

    Args:
        processors: of scores that are ``log_distribution``.
        complete: a function of a number of rows, which gives the scores of all tokens where those of probability zero
            were approximate, or None where they are complete. The processors then see them too, in the steps in which
            they leave no other token; it must be None throughout where one ``may_count_calls``.

    Raises:
        ValueError: one for guidance, which needs the ratio of two distributions.
    """

    has_floor = True  # beam search reads it; see end_possible_strings

    def __init__(
        self, processors: LogitsProcessorList, complete: Callable[[int], Tensor | None] = lambda num_rows: None
    ) -> None:
        for processor in processors:
            if isinstance(processor, _GUIDANCE):
                raise ValueError(
                    "guidance_scale weighs ratios of probabilities, with and without the prompt, which zeros do not "
                    "have; leave it out, or pass head=None"
                )
        super().__init__(processors)
        self.complete = complete

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """The processed scores (rows, V); see above for those of probability zero."""
        if not self:
            return scores
        zero = scores < LOG_ZERO / 2
        processed = self._processed(input_ids, scores, zero, **kwargs)
        complete = None if bool(_any_left(processed, zero).all()) else self.complete(len(scores))
        if complete is None:
            return processed
        return self._processed(input_ids, complete.to(scores.dtype), zero, **kwargs)

    def _processed(self, input_ids: Tensor, scores: Tensor, zero: Tensor, **kwargs: Any) -> Tensor:
        for processor in self:
            processed = LogitsProcessorList([processor])(input_ids, scores.clone(), **kwargs)
            # On a GPU it would cost more to look whether there is anything to undo.
            if processed.device.type != "cpu" or bool((processed > scores).logical_and_(zero).any()):
                processed = keep_zeros(scores, processed, zero)
            scores = processed
        return scores


def may_count_calls(processor: object) -> bool:
    """Whether a processor may count its calls, as a parser does that steps on with each, and is to see a step once.

    Of Transformers' own it is known which do.
    """
    return type(processor).__module__ != logits_process.__name__ or isinstance(processor, _WITH_STATE)


def keep_zeros(scores: Tensor, processed: Tensor, zero: Tensor) -> Tensor:
    """Scores after a processor, in which tokens of probability zero are no likelier than before.

    Args:
        scores: (rows, V) that it was given.
        processed: (rows, V) that it made of them.
        zero: (rows, V), the tokens of probability zero. In a row that has no others left they stand as processed.
    """
    kept = zero & _any_left(processed, zero)
    return torch.where(kept, processed.minimum(scores), processed)


def _any_left(scores: Tensor, zero: Tensor) -> Tensor:
    """Whether each row (rows, 1) has a token of nonzero probability that is not forbidden."""
    return (scores > -torch.inf).logical_and_(~zero).any(-1, keepdim=True)
