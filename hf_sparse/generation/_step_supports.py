"""Which tokens a sparse model holds possible at every step of a given string."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..model.distribution import distribution
from ._continuations import head_map
from ._forced_decoding import beginning, forced_output
from ._inputs import num_sentences


@dataclass(frozen=True)
class StepSupport:
    """One step of forced decoding.

    Attributes:
        chosen: the token of the string; it need not be among ``tokens``.
        tokens: those of nonzero probability, likeliest first.
        probabilities: theirs, summing to one.
    """

    chosen: int
    tokens: list[int]
    probabilities: list[float]

    @property
    def forced(self) -> bool:
        """Whether the model leaves no choice."""
        return self.tokens == [self.chosen]


@torch.no_grad()
def step_supports(model: PreTrainedModel, inputs: Mapping[str, Tensor], tokens: Sequence[int]) -> list[StepSupport]:
    """The tokens of nonzero probability at each step while ``tokens`` are forced upon the model.

    Args:
        model: a model with a sparse head, or an ensemble, in evaluation mode.
        inputs: what ``model.generate`` takes, for one sentence: (1, length) tensors.
        tokens: the string, without start token and prompt, as in ``SupportSet.sequences``.

    Returns:
        One ``StepSupport`` a token.

    Raises:
        TypeError: inputs that are no mapping to tensors.
        ValueError: a dense head, more than one sentence, no tokens, NaN in the logits.

    Source: Peters et al. 2019, Figure 2.
    Cost: one forward pass.
    """
    map_config = head_map(model)
    rows = num_sentences(inputs)
    if rows != 1:
        raise ValueError(f"inputs must be for one sentence, were for {rows}")
    begin = beginning(model, inputs, 1)
    sequence = torch.cat([begin, torch.tensor([list(tokens)], dtype=torch.long, device=begin.device)], dim=1)
    _, _, logits = forced_output(model, inputs, sequence)
    steps = []
    for token, p in zip(tokens, distribution(map_config, logits)[0].double()):
        order = p.argsort(descending=True, stable=True)[: int((p > 0).sum())]
        steps.append(StepSupport(int(token), order.tolist(), p[order].tolist()))
    return steps
