"""softpick (Zuhri et al. 2025): a rectified softmax whose weights need not sum to one."""

from __future__ import annotations

import torch
from torch import Tensor

from ._in_chunks import map_in_chunks
from .registry import SparseMap, register
from .rows import unmasked


def softpick(z: Tensor, dim: int = -1) -> Tensor:
    """``p_i = max(e^{z_i} - 1, 0) / sum_j |e^{z_j} - 1|`` over the scores that are not masked.

    The weights are for attention. Scores up to 0 have no weight, and those below 0 still take from the others: the
    weights sum to at most one, and to zero where no score is positive.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        dim: the axis to map.

    Returns:
        Weights in [0, 1] with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros, and so do scores
        that are all 0, where the quotient has no limit; the paper adds 1e-6 to the sum instead.

    Raises:
        TypeError, IndexError, ValueError: see ``entmax``.

    Source: Zuhri et al. 2025, Softpick: No Attention Sink, No Massive Activations with Rectified Softmax.
    Cost: two exponentials and a dozen passes in cache; as much again for the gradient.

    >>> softpick(torch.log(torch.tensor([3.0, 2.0, 0.5, 1.0])))  # 2, 1, -1/2 and 0, over 3.5
    tensor([0.5714, 0.2857, 0.0000, 0.0000])
    """
    return map_in_chunks(_weights, _gradient, z, dim)


def _weights(x: Tensor) -> Tensor:
    parts, total, _ = _parts(x)
    return parts * torch.relu(x.sign()) / total


def _gradient(x: Tensor, grad: Tensor) -> Tensor:
    """``e^x (g - g . p)`` over the sum where x is above 0, ``e^x (g . p)`` over the sum below, and 0 at 0."""
    parts, total, largest = _parts(x)
    side = x.sign()
    gained = torch.relu(side).mul_(grad)
    mean = (gained * parts).sum(-1, keepdim=True).div_(total)
    return gained.sub_(side.mul_(mean)).mul_((x - largest).exp_()).div_(-total)


def _parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``-|e^x - 1|`` over e^largest, its sum, 1 where that is 0, and the largest score or 0.

    By expm1: small scores keep their digits, and no argument overflows.
    """
    x = unmasked(x, 0.0)  # where the difference, and so its share of the sum, is 0
    largest = x.detach().amax(-1, keepdim=True).clamp(min=0.0)
    parts = torch.expm1(-x.abs()) * (torch.relu(x) - largest).exp()
    total = parts.sum(-1, keepdim=True)
    return parts, torch.where(total == 0, 1.0, total), largest


register(SparseMap("softpick", softpick, None, normalized=False, shift_invariant=False))
