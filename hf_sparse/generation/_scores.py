"""Log-probabilities of given strings, and for unnormalized heads their log-weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..config import MapConfig
from ..model.distribution import distribution
from ..model.state import state_of
from ._continuations import end_tokens
from ._forced_decoding import forced_output


@dataclass(frozen=True)
class SequenceScores:
    """Scores of strings, in nats; their order is that of the strings.

    Attributes:
        normalized: (rows,) log-probability under the distribution that ``generate`` reads, which sums to one at every
            step; -inf for a string of probability zero.
        unnormalized: (rows,) sum of the logarithms of the head's own weights. For alpha-ReLU these are not divided by
            their sum, so that it is no log-probability; for every other map equal to ``normalized``.
        sums: (rows, steps) sum of the head's own weights at every step, 1 for normalized maps; NaN after a string's
            end. ``unnormalized - normalized`` is the sum of their logarithms.
        lengths: (rows,) number of tokens scored, the end token included.
    """

    normalized: Tensor
    unnormalized: Tensor
    sums: Tensor
    lengths: Tensor


@torch.no_grad()
def score_sequences(model: PreTrainedModel, inputs: Mapping[str, Tensor], sequences: Tensor) -> SequenceScores:
    """Score strings under a model, sparse or dense.

    Args:
        model: a model that ``generate`` works for, in evaluation mode.
        inputs: what ``model.generate`` takes, (B, T) tensors; decoder-only prompts padded on the left.
        sequences: token ids (k B, L) as ``model.generate`` returns them: with the start token, or the prompt, and with
            anything at all after the end token. Rows k b to k b + k - 1 belong to input b.

    Returns:
        ``SequenceScores``, float64.

    Raises:
        TypeError: inputs that are no mapping to tensors.
        ValueError: a number of sequences that does not fit the inputs, sequences that do not begin as those of
            ``generate``, no token to score, NaN in the logits.

    Source: Tezekbayev et al. 2022, Section 4 (self-normalization of alpha-ReLU).
    Cost: one forward pass.
    """
    _, targets, logits = forced_output(model, inputs, sequences)
    state = state_of(model)
    map_config = MapConfig("softmax") if state is None else state.head
    weights = map_config(logits.double())
    end = torch.tensor(end_tokens(model), device=targets.device)
    ended = torch.isin(targets, end)
    counted = ended.cumsum(-1) - ended.long() == 0
    sums = weights.sum(-1)

    def score(p: Tensor) -> Tensor:
        chosen = p.gather(-1, targets[..., None])[..., 0].log()
        return torch.where(counted, chosen, 0.0).sum(-1)

    return SequenceScores(
        normalized=score(distribution(map_config, logits.double())),
        unnormalized=score(weights),
        sums=torch.where(counted, sums, torch.nan),
        lengths=counted.sum(-1),
    )
