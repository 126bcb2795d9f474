"""entmax15: alpha-entmax at alpha = 1.5, halfway between softmax and sparsemax."""

from __future__ import annotations

from torch import Tensor

from ._entmax import entmax
from .negentropy import tsallis_negentropy
from .registry import SparseMap, register


def entmax15(z: Tensor, dim: int = -1, *, impl: str = "auto") -> Tensor:
    """``p_i = [z_i / 2 - tau]_+ ^ 2``, with the threshold ``tau`` at which p sums to one.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        dim: the axis to map.
        impl: see ``entmax``.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros.

    Raises:
        TypeError, IndexError, ValueError, KernelUnavailable: see ``entmax``.

    Source: Peters et al. 2019, Section 3.2.
    Cost: see ``entmax``.

    >>> import torch
    >>> entmax15(torch.tensor([2.0, 1.0, -1.0]))
    tensor([0.8307, 0.1693, 0.0000])
    """
    return entmax(z, 1.5, dim, impl=impl)


register(SparseMap("entmax15", entmax15, tsallis_negentropy, same_as=("entmax", {"alpha": 1.5})))
