"""sparsemax: the Euclidean projection of the scores onto the probability simplex."""

from __future__ import annotations

from torch import Tensor

from ._entmax import entmax
from .negentropy import half_squared_norm
from .registry import SparseMap, register


def sparsemax(z: Tensor, dim: int = -1, *, impl: str = "auto") -> Tensor:
    """``p_i = [z_i - tau]_+``, with the threshold ``tau`` at which p sums to one.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        dim: the axis to map.
        impl: see ``entmax``.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros.

    Raises:
        TypeError, IndexError, ValueError, KernelUnavailable: see ``entmax``.

    Source: Martins and Astudillo 2016; alpha-entmax at alpha = 2 (Peters et al. 2019).
    Cost: see ``entmax``.

    >>> import torch
    >>> sparsemax(torch.tensor([0.7, 0.5, -1.0]))
    tensor([0.6000, 0.4000, 0.0000])
    """
    return entmax(z, 2.0, dim, impl=impl)


register(SparseMap("sparsemax", sparsemax, half_squared_norm, same_as=("entmax", {"alpha": 2.0})))
