"""sparsehourglass and sparsecone (Laha et al. 2018): from scale invariance at q = 0 towards sparsemax."""

from __future__ import annotations

import torch
from torch import Tensor

from ._entmax import entmax_rows
from ._map import Setting, SparseMap, register
from ._rows import map_rows, per_row


def sparsehourglass(z: Tensor, q: float | Tensor = 1.0, dim: int = -1) -> Tensor:
    """``sparsemax(z (1 + Kq) / (|sum z| + Kq))``, K the number of entries that are not masked.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        q: at least 0. 0 is ``sum_normalization_pp``; the larger, the closer to sparsemax. A tensor gives rows their
            own, as in ``entmax``; its values are not checked, and the gradient reaches it.
        dim: the axis to map.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros. At q = 0 scores that
        sum to 0 give NaN: there the map has no value.

    Raises:
        TypeError, IndexError: see ``entmax``.
        ValueError: ``q < 0``, or an empty axis.

    Source: Laha et al. 2018, Eq. 5. The l2 Lipschitz constant is ``sqrt((1 + Kq)^2 + K - 1) / (Kq)``, which is more
    than the paper's ``1 + 1 / (Kq)``.
    Cost: that of ``sparsemax`` and one sum.

    >>> sparsehourglass(torch.tensor([2.0, 1.0]), q=1.0)
    tensor([0.8000, 0.2000])
    """
    q = per_row("q", q, z, dim) if torch.is_tensor(q) else float(Q.check("q", q))
    return map_rows(lambda x: _from_anchor(x, q, mirrored=True), z, dim)


def sparsecone(z: Tensor, q: float | Tensor = 1.0, dim: int = -1) -> Tensor:
    """``sparsemax(z (1 + Kq) / (sum z + Kq))``, K the number of entries that are not masked.

    Args:
        z: scores, any shape, any floating-point dtype, with ``sum z + Kq > 0`` in each row; ``-inf`` masks an entry.
        q: at least 0; the larger, the closer to sparsemax.
        dim: the axis to map.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros.

    Raises:
        TypeError, IndexError: see ``entmax``.
        ValueError: ``q < 0``, an empty axis, or a row with ``sum z + Kq <= 0``, outside the cone.

    Source: Laha et al. 2018, Section 3.4.

    >>> sparsecone(torch.tensor([2.0, 1.0]), q=1.0)
    tensor([0.8000, 0.2000])
    """
    q = per_row("q", q, z, dim) if torch.is_tensor(q) else float(Q.check("q", q))
    return map_rows(lambda x: _from_anchor(x, q, mirrored=False), z, dim)


def _from_anchor(x: Tensor, q: float | Tensor, mirrored: bool) -> Tensor:
    """sparsemax of x carried along its line from ``-q 1`` onto the hyperplane of the simplex."""
    masked = x == -torch.inf
    count = (~masked).sum(-1, keepdim=True).to(x.dtype)
    total = x.masked_fill(masked, 0.0).sum(-1, keepdim=True)
    distance = ((total.abs() if mirrored else total) + count * q).masked_fill(count == 0, 1.0)
    if not mirrored and not torch.compiler.is_compiling() and bool((distance <= 0).any()):
        raise ValueError(
            f"sparsecone needs sum z + K q > 0 in every row, the smallest was {float(distance.min()):g}; "
            "use sparsehourglass, which is defined everywhere"
        )
    scaled = x.masked_fill(masked, 0.0) * ((1 + count * q) / distance)
    return entmax_rows(scaled.masked_fill(masked, -torch.inf), 2.0)


Q = Setting(
    default=1.0,
    allowed=">= 0",
    holds=lambda q: 0 <= q < float("inf"),
    from_real=torch.exp,
    to_real=torch.log,
)

# Their Jacobians are not symmetric, so that no regularizer yields them.
register(SparseMap("sparsehourglass", sparsehourglass, None, settings={"q": Q}, shift_invariant=False))
register(SparseMap("sparsecone", sparsecone, None, settings={"q": Q}, shift_invariant=False, any_scores=False))
