"""Spherical softmax: the squares of the scores, normalized."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import SparseMap, register
from .rows import map_rows


def spherical_softmax(z: Tensor, dim: int = -1) -> Tensor:
    """``p_i = z_i^2 / sum_j z_j^2``.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        dim: the axis to map.

    Returns:
        Probabilities, shape and dtype of ``z``; zero only where the score is. A fully masked row gives zeros; scores
        that are all 0 give NaN: the map is undefined there.

    Raises:
        TypeError, IndexError, ValueError: see ``entmax``.

    Source: Laha et al. 2018, Section 2.
    Cost: two passes.

    >>> spherical_softmax(torch.tensor([1.0, -2.0, 0.0]))
    tensor([0.2000, 0.8000, 0.0000])
    """

    def rows(x: Tensor) -> Tensor:
        masked = x == -torch.inf
        x = x.masked_fill(masked, 0.0)
        # Divided by the largest first, since squares of large scores overflow; a constant factor cancels.
        largest = x.detach().abs().amax(-1, keepdim=True)
        squares = (x / largest.masked_fill(masked.all(-1, keepdim=True), 1.0)).square()
        return squares / squares.sum(-1, keepdim=True).masked_fill(masked.all(-1, keepdim=True), 1.0)

    return map_rows(rows, z, dim)


register(SparseMap("spherical_softmax", spherical_softmax, None, shift_invariant=False))
