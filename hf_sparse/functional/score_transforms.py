"""Changes of scores before the map: a factor that grows with the number of keys, and centering."""

from __future__ import annotations

import torch
from torch import Tensor

from .rows import accumulation_dtype, lowest_visible, upcast


def length_scale(z: Tensor, delta: float | Tensor, beta: float | Tensor, gamma: float | Tensor) -> Tensor:
    """``delta + beta (log n) ^ gamma``, n one more than the number of visible scores in a row.

    The factor keeps weights from spreading as sequences grow. With causal attention a query at position i sees i + 1
    keys, computed together with the others or alone against a cache. The one more keeps ``log n`` above 0.

    Args:
        z: scores (..., keys); ``-inf`` is masked. A sink counts as a key.
        delta, beta, gamma: numbers, or tensors that broadcast over (..., 1).

    Returns:
        Factors (..., 1), float32 (float64 for float64 scores).

    Source: Vasylenko et al. 2025, Long-Context Generalization with Sparse Attention (adaptive-scalable entmax), where
    beta and gamma also depend on the query; here each head has its own. With delta 0 and gamma 1 it is the factor of
    scalable softmax (Nakanishi 2025), except for the one more.
    Cost: one pass over the scores.

    >>> length_scale(torch.zeros(1, 7), delta=1.0, beta=1.0, gamma=2.0)  # 1 + (log 8) ^ 2
    tensor([[5.3241]])
    """
    visible = (z > -torch.inf).sum(-1, keepdim=True)
    return length_factor(visible.to(accumulation_dtype(z)), delta, beta, gamma)


def length_factor(visible: Tensor, delta: float | Tensor, beta: float | Tensor, gamma: float | Tensor) -> Tensor:
    """The factor of ``length_scale`` for numbers of visible keys, in their dtype; a query that sees none has one."""
    return delta + beta * torch.log1p(visible.clamp(min=1)) ** gamma


def centered(z: Tensor) -> Tensor:
    """``z_i - mean_j z_j`` over the last axis; the mean is over entries that are not masked.

    For logits ``z = W h + b`` this is the head ``W - 1 mean_rows(W)``, ``b - mean(b)``: same softmax, logits of mean
    zero, and W unchanged, which may be tied to the input embeddings.

    Args:
        z: scores (..., V), any floating-point dtype; an entry in the lower half of its range counts as masked.

    Returns:
        Scores (..., V), float32 (float64 for float64 scores).

    Cost: one pass.

    >>> centered(torch.tensor([3.0, 1.0, -torch.inf]))
    tensor([ 1., -1., -inf])
    """
    visible = z > lowest_visible(z.dtype)
    z = upcast(z)
    return z - z.masked_fill(~visible, 0.0).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp(min=1)
