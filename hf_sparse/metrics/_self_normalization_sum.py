"""How close an unnormalized map comes to a distribution."""

from __future__ import annotations

from torch import Tensor

from ..functional.rows import accumulation_dtype


def self_normalization_sum(p: Tensor, dim: int = -1) -> Tensor:
    """``sum_i p_i``: 1 for a distribution, and what training drives the weights of ``alpha_relu`` towards.

    Args:
        p: non-negative weights (..., V).
        dim: the axis of the classes.

    Returns:
        Sums (...), float32 (float64 for float64 ``p``), in units of probability.

    Raises:
        TypeError: weights that are not floating-point.

    Source: Tezekbayev et al. 2022, Section 4.5 (self-normalization).
    Cost: one pass.

    >>> import torch
    >>> self_normalization_sum(torch.tensor([[0.75, 0.5, 0.0]]))
    tensor([1.2500])
    """
    if not p.is_floating_point():
        raise TypeError(f"weights must be floating-point, were {p.dtype}")
    return p.sum(dim, dtype=accumulation_dtype(p))
