"""Sum normalization, and its variant for scores of any sign."""

from __future__ import annotations

import torch
from torch import Tensor

from ._sparsehourglass import sparsehourglass
from .registry import SparseMap, register
from .rows import is_readable, map_rows


def sum_normalization(z: Tensor, dim: int = -1) -> Tensor:
    """``p_i = z_i / sum_j z_j`` for non-negative scores.

    Args:
        z: scores, any shape, any floating-point dtype, at least 0; ``-inf`` masks an entry.
        dim: the axis to map.

    Returns:
        Probabilities, shape and dtype of ``z``; zero only where the score is. A fully masked row gives zeros; scores
        that are all 0 give NaN.

    Raises:
        TypeError, IndexError: see ``entmax``.
        ValueError: a negative score that is not ``-inf``, or an empty axis.

    Source: Laha et al. 2018, Section 2.
    Cost: one sum.

    >>> sum_normalization(torch.tensor([3.0, 1.0, 0.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """

    def rows(x: Tensor) -> Tensor:
        masked = x == -torch.inf
        x = x.masked_fill(masked, 0.0)
        if is_readable(x) and bool((x < 0).any()):
            raise ValueError(
                f"sum_normalization needs scores >= 0, the smallest was {float(x.min()):g}; "
                "use sum_normalization_pp, which takes negative ones"
            )
        return x / x.sum(-1, keepdim=True).masked_fill(masked.all(-1, keepdim=True), 1.0)

    return map_rows(rows, z, dim)


def sum_normalization_pp(z: Tensor, dim: int = -1) -> Tensor:
    """``sparsemax(z / |sum z|)``: "sum normalization++", the sparsehourglass at q = 0.

    Scaling all scores by a positive constant leaves the weights as they are.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        dim: the axis to map.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros; scores that sum to 0
        give NaN.

    Raises:
        TypeError, IndexError, ValueError: see ``sparsehourglass``.

    Source: Laha et al. 2018, Section 3.5.

    >>> sum_normalization_pp(torch.tensor([3.0, 1.0]))
    tensor([0.7500, 0.2500])
    """
    return sparsehourglass(z, 0.0, dim)


register(SparseMap("sum_normalization", sum_normalization, None, shift_invariant=False, any_scores=False))
register(SparseMap("sum_normalization_pp", sum_normalization_pp, None, shift_invariant=False))
