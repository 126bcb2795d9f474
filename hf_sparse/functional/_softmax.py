"""softmax, the dense end of the entmax family (alpha = 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from .negentropy import negative_entropy
from .registry import SparseMap, register
from .rows import map_rows


def softmax_rows(x: Tensor) -> Tensor:
    """softmax over the last axis, with zeros (not NaN) where a whole row is masked."""
    masked = (x == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(x.masked_fill(masked, 0.0), -1).masked_fill(masked, 0.0)


def softmax(z: Tensor, dim: int = -1) -> Tensor:
    """``p_i = exp(z_i) / sum_j exp(z_j)``.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        dim: the axis to map.

    Returns:
        Probabilities, shape and dtype of ``z``. A fully masked row gives zeros; ``torch.softmax`` gives NaN.

    Raises:
        TypeError, IndexError, ValueError: see ``entmax``.

    Cost: that of ``torch.softmax`` plus one pass to find fully masked rows.

    >>> softmax(torch.tensor([0.0, float("-inf")]))
    tensor([1., 0.])
    """
    return map_rows(softmax_rows, z, dim)


register(SparseMap("softmax", softmax, negative_entropy, same_as=("entmax", {"alpha": 1.0})))
