"""Does a model hold the empty string likelier than what beam search finds ("cat got your tongue")?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ._continuations import end_tokens
from ._forced_decoding import beginning
from ._inputs import num_sentences
from ._scores import SequenceScores, score_sequences


@dataclass(frozen=True)
class EmptyComparison:
    """The empty string beside the beam hypothesis, for each input.

    Attributes:
        hypotheses: token ids (B, L) as ``generate`` returned them.
        found_empty: (B,) whether the hypothesis is itself empty, so that nothing can be preferred to it.
        hypothesis_scores: scores of the hypotheses, without any length penalty.
        empty_scores: scores of the empty string, which is the end token alone; where several tokens end a string,
            the sum over them. ``sums`` has the one step.
    """

    hypotheses: Tensor
    found_empty: Tensor
    hypothesis_scores: SequenceScores
    empty_scores: SequenceScores

    @property
    def preferred(self) -> Tensor:
        """(B,) whether the empty string is the likelier one. Its mean is the rate of the paper's Table 2."""
        return ~self.found_empty & (self.empty_scores.normalized > self.hypothesis_scores.normalized)

    @property
    def preferred_unnormalized(self) -> Tensor:
        """(B,) whether the head's own weights, not divided by their sum, prefer the empty string."""
        return ~self.found_empty & (self.empty_scores.unnormalized > self.hypothesis_scores.unnormalized)


def compare_with_empty(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], num_beams: int = 5, **generate_options: Any
) -> EmptyComparison:
    """Compare the empty string with the hypothesis of a beam search.

    Args:
        model: a model that ``generate`` works for, sparse or dense, in evaluation mode.
        inputs: what ``model.generate`` takes, (B, T) tensors.
        num_beams: the width of the beam.
        **generate_options: for ``model.generate``, as ``max_new_tokens`` and ``length_penalty``.

    Returns:
        An ``EmptyComparison``.

    Raises:
        TypeError: inputs that are no mapping to tensors.
        ValueError: no end token, NaN in the logits.

    Source: Stahlberg and Byrne 2019; Tezekbayev et al. 2022, Section 4.1 and Table 2.
    Cost: a beam search and two forward passes.
    """
    ends = end_tokens(model)
    options = {"do_sample": False, "num_return_sequences": 1, **generate_options}
    num_sentences(inputs)
    hypotheses = model.generate(**inputs, num_beams=num_beams, **options)
    begin = beginning(model, inputs, len(hypotheses))
    end = torch.tensor(ends, device=begin.device)
    each_end = torch.cat([begin.repeat_interleave(len(ends), dim=0), end.repeat(len(begin))[:, None]], dim=1)
    empty = score_sequences(model, inputs, each_end)
    return EmptyComparison(
        hypotheses,
        torch.isin(hypotheses[:, begin.shape[1]], end),
        score_sequences(model, inputs, hypotheses),
        SequenceScores(
            normalized=empty.normalized.view(-1, len(ends)).logsumexp(-1),
            unnormalized=empty.unnormalized.view(-1, len(ends)).logsumexp(-1),
            sums=empty.sums[:: len(ends)],
            lengths=empty.lengths[:: len(ends)],
        ),
    )
