"""softmax, the dense end of the entmax family (alpha = 1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..tracing import in_graph
from .negentropy import negative_entropy
from .registry import SparseMap, register
from .rows import check_scores


def softmax_rows(x: Tensor) -> Tensor:
    """softmax over the last axis, computed in float32 at least, with zeros (not NaN) where a whole row is masked."""
    if x.device.type == "cpu" and not in_graph() and not torch._C._are_functorch_transforms_active():
        p = torch.softmax(x, -1)
        # A row comes out as NaN if it is fully masked or holds a NaN; only then is it worth a look at the scores.
        if not math.isnan(p.detach()[..., 0].sum().item()):
            return p
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

    Cost: that of ``torch.softmax``; off the CPU, in compiled code and where rows are fully masked four passes more.

    >>> softmax(torch.tensor([0.0, float("-inf")]))
    tensor([1., 0.])
    """
    check_scores(z, dim)
    if dim in (-1, z.dim() - 1):  # on few rows the two views would take as long as the rest
        return softmax_rows(z)
    return softmax_rows(z.movedim(dim, -1)).movedim(-1, dim)


register(SparseMap("softmax", softmax, negative_entropy, same_as=("entmax", {"alpha": 1.0})))
