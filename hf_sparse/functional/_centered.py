"""Scores without the constant that softmax ignores."""

from __future__ import annotations

import torch
from torch import Tensor

from ._rows import wide


def centered(z: Tensor) -> Tensor:
    """``z_i - mean_j z_j`` over the last axis; the mean is over entries that are not masked.

    For logits ``z = W h + b`` this is the head ``W - 1 mean_rows(W)``, ``b - mean(b)``: the same softmax, mean-zero
    logits, and W itself, which may be tied to the input embeddings, as it was.

    Args:
        z: scores (..., V), any floating-point dtype; an entry in the lower half of its range counts as masked.

    Returns:
        Scores (..., V), float32 (float64 for float64 scores).

    Cost: one pass.

    >>> centered(torch.tensor([3.0, 1.0, -torch.inf]))
    tensor([ 1., -1., -inf])
    """
    visible = z > torch.finfo(z.dtype).min / 2
    z = wide(z)
    return z - z.masked_fill(~visible, 0.0).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp(min=1)
