"""Logits processors that choose among the tokens of nonzero probability."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from .distribution import OFF_SUPPORT

_GUIDANCE = tuple(cls for name, cls in vars(logits_process).items() if "ClassifierFreeGuidance" in name)


class KeptSupport(LogitsProcessorList):
    """Processors in order, after which no token is likelier for having had probability zero before.

    What they add or multiply acts on probabilities, and zero stays zero. The ``-10,000`` in the place of its logarithm
    would not, under a penalty that grows with the length or a bias that is meant to be large. Only where constraints
    leave no other token do scores of such tokens stand as the processors made them.

    Args:
        processors: of scores that are ``log_distribution``.

    Raises:
        ValueError: one for guidance, which needs the ratio of two distributions.
    """

    def __init__(self, processors: LogitsProcessorList) -> None:
        for processor in processors:
            if isinstance(processor, _GUIDANCE):
                raise ValueError(
                    "guidance_scale weighs ratios of probabilities, with and without the prompt, which zeros do not "
                    "have; leave it out, or pass head=None"
                )
        super().__init__(processors)

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """The processed scores (rows, V); see above for those of probability zero."""
        zero = scores < OFF_SUPPORT / 2
        for processor in self:
            processed = LogitsProcessorList([processor])(input_ids, scores.clone(), **kwargs)
            others_left = (~zero & (processed > -torch.inf)).any(-1, keepdim=True)
            scores = torch.where(zero & others_left, processed.minimum(scores), processed)
        return scores
