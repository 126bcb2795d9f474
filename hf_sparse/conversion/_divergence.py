"""How far sparse weights are from the dense ones they stand in for."""

from __future__ import annotations

import torch
from torch import Tensor


def support_divergence(q: Tensor, p: Tensor) -> Tensor:
    """``KL(q || p) = sum_{q_i > 0} q_i log(q_i / p_i)``, in nats: finite however many zeros q has.

    Args:
        q: sparse weights (..., V).
        p: dense weights (..., V), above zero where q is.

    Returns:
        Divergences (...), float32 (float64 for float64 weights); 0 where q is all zeros.

    >>> support_divergence(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))  # log 2
    tensor(0.6931)
    """
    smallest = torch.finfo(p.dtype).tiny
    return (torch.xlogy(q, q) - torch.xlogy(q, p.clamp(min=smallest))).sum(-1)


def squared_distance(q: Tensor, p: Tensor) -> Tensor:
    """``||q - p||^2`` over the last axis: the error that weights q in place of p make in what they average.

    Both sum to one, so the mean of the values drops out: for values with independent entries of variance s^2 the
    expected squared error of ``sum_i (q_i - p_i) v_i`` is ``s^2 ||q - p||^2`` an entry.
    """
    return (q - p).square().sum(-1)
