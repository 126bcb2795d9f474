"""softmax beside a sink of score zero ("off by one")."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from .registry import SparseMap, register
from .rows import map_rows


def softmax1(z: Tensor, dim: int = -1) -> Tensor:
    """``p_i = exp(z_i) / (1 + sum_j exp(z_j))``: softmax beside a score of 0 whose weight goes nowhere.

    The weights are for attention. They sum to less than one, to nearly nothing where all scores are far below 0; none
    is zero.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        dim: the axis to map.

    Returns:
        Weights in [0, 1], shape and dtype of ``z``. A fully masked row gives zeros.

    Raises:
        TypeError, IndexError, ValueError: see ``entmax``.

    Source: Miller 2023, Attention Is Off By One; the fixed case of the learned sinks of gpt-oss.
    Cost: that of softmax and two copies.

    >>> softmax1(torch.tensor([0.0, 0.0, -torch.inf]))
    tensor([0.3333, 0.3333, 0.0000])
    """
    return map_rows(lambda x: torch.softmax(pad(x, (0, 1)), -1)[..., :-1].contiguous(), z, dim)


register(SparseMap("softmax1", softmax1, None, normalized=False, shift_invariant=False))
