"""The Tsallis regularizer as a function of alpha too, smooth through alpha = 1.

By Danskin's theorem the entmax loss depends on alpha only through its regularizer:
``dL/dalpha = dOmega(y)/dalpha - dOmega(p)/dalpha`` at fixed p, where for a class target the first term is zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.rows import is_transformed, row_by_row

# Below this the quotient loses digits that the series keeps; at it, both are good to 1e-13.
_SERIES_BELOW = 1e-2


def _expm1_over(x: Tensor) -> Tensor:
    """``(e^x - 1) / x``, with all its derivatives at 0."""
    small = x.abs() < _SERIES_BELOW
    far = torch.where(small, 1.0, x)
    near = torch.where(small, x, 0.0)
    series = 1 + near / 2 * (1 + near / 3 * (1 + near / 4 * (1 + near / 5 * (1 + near / 6 * (1 + near / 7)))))
    return torch.where(small, series, far.expm1() / far)


def tsallis_negentropy_in_alpha(p: Tensor, alpha: Tensor) -> Tensor:
    """``Omega(p) = sum_i p_i (p_i^(alpha-1) - 1) / (alpha (alpha - 1))``, differentiable in alpha at 1 too.

    On the simplex that is ``(sum_i p_i^alpha - 1) / (alpha (alpha - 1))``; written with
    ``log p_i (e^x - 1)/x``, ``x = (alpha - 1) log p_i``, nothing is divided by ``alpha - 1``.

    Args:
        p: probabilities (N, V).
        alpha: (N, 1), (1, 1) or no dimension, at least 1.

    Returns:
        (N,) in the dtype of p; computed in float64.
    """
    num_rows, _ = torch.broadcast_shapes(p[:, :1].shape, alpha.shape)
    p, excess = p.expand(num_rows, -1), (alpha.double() - 1).expand(num_rows, 1)
    if row_by_row(p) and not is_transformed(p, alpha):  # on the support alone
        row, column = (p.detach() != 0).nonzero(as_tuple=True)  # NaN is not 0, and stays
        terms = _terms(p[row, column].double(), excess[row, 0])
        total = terms.new_zeros(len(p)).index_add(0, row, terms)
    else:
        p64 = p.double()
        total = torch.where(p64 != 0, _terms(torch.where(p64 != 0, p64, 1.0), excess), 0.0).sum(-1)
    return (total / (1 + excess[:, 0])).to(p.dtype)


def _terms(p: Tensor, excess: Tensor) -> Tensor:
    """``p (p^excess - 1) / excess`` for positive p."""
    log = p.log()
    return p * log * _expm1_over(excess * log)
