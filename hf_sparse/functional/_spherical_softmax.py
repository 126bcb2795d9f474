"""Spherical softmax: the squares of the scores, normalized."""

from __future__ import annotations

import torch
from torch import Tensor

from ._in_chunks import map_in_chunks
from .registry import SparseMap, register
from .rows import hidden, unmasked


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
    return map_in_chunks(_weights, _gradient, z, dim)


def _weights(x: Tensor) -> Tensor:
    y, _, gone = _scaled(x)
    squares = y.square()
    return squares / (squares.sum(-1, keepdim=True) + gone)


def _gradient(x: Tensor, grad: Tensor) -> Tensor:
    """``2 z (g - g . p) / sum z^2``."""
    y, largest, gone = _scaled(x)
    squares = y.square()
    total = squares.sum(-1, keepdim=True).add_(gone)
    mean = squares.mul_(grad).sum(-1, keepdim=True).div_(total)
    return torch.sub(grad, mean).mul_(y).mul_(2 / (total * largest)).mul_(1 - hidden(x))


def _scaled(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The scores over the largest in size, since squares of large ones overflow; it; and 1 for a row that is masked.

    A constant factor cancels. Masked scores are 0, a row of them 0 over 1.
    """
    gone = hidden(x).amin(-1, keepdim=True)
    visible = unmasked(x, 0.0)
    largest = visible.detach().abs().amax(-1, keepdim=True) + gone
    return visible / largest, largest, gone


register(SparseMap("spherical_softmax", spherical_softmax, None, shift_invariant=False))
