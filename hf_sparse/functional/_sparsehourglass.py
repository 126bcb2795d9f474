"""sparsehourglass and sparsecone (Laha et al. 2018): from scale invariance at q = 0 towards sparsemax."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ._entmax import entmax_rows
from .registry import Setting, SparseMap, register
from .rows import check_scores, is_readable, map_rows, per_row, upcast


def sparsehourglass(z: Tensor, q: float | Tensor = 1.0, dim: int = -1) -> Tensor:
    """``sparsemax(z (1 + Kq) / (|sum z| + Kq))``, K the number of entries that are not masked.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        q: from 0 to 1e9. 0 is ``sum_normalization_pp``; the larger, the closer to sparsemax. A tensor gives each
            row its own, as in ``entmax``; its values are not checked, and it receives a gradient.
        dim: the axis to map.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros. At q = 0 scores that
        sum to 0 give NaN: the map is undefined there.

    Raises:
        TypeError, IndexError: see ``entmax``.
        ValueError: q out of range, or an empty axis.

    Source: Laha et al. 2018, Eq. 5. The l2 Lipschitz constant is ``sqrt((1 + Kq)^2 + K - 1) / (Kq)``, larger
    than the paper's ``1 + 1 / (Kq)``.
    Cost: that of ``sparsemax`` and one sum.

    >>> sparsehourglass(torch.tensor([2.0, 1.0]), q=1.0)
    tensor([0.8000, 0.2000])
    """
    return map_rows(lambda x: entmax_rows(x, 2.0), _on_the_plane(z, dim, q, mirrored=True), dim).to(z.dtype)


def sparsecone(z: Tensor, q: float | Tensor = 1.0, dim: int = -1) -> Tensor:
    """``sparsemax(z (1 + Kq) / (sum z + Kq))``, K the number of entries that are not masked.

    Args:
        z: scores, any shape, any floating-point dtype, with ``sum z + Kq > 0`` in each row; ``-inf`` masks an entry.
        q: from 0 to 1e9; the larger, the closer to sparsemax.
        dim: the axis to map.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros.

    Raises:
        TypeError, IndexError: see ``entmax``.
        ValueError: q out of range, an empty axis, or a row with ``sum z + Kq <= 0``, outside the cone.

    Source: Laha et al. 2018, Section 3.4.

    >>> sparsecone(torch.tensor([2.0, 1.0]), q=1.0)
    tensor([0.8000, 0.2000])
    """
    return map_rows(lambda x: entmax_rows(x, 2.0), _on_the_plane(z, dim, q, mirrored=False), dim).to(z.dtype)


def _on_the_plane(z: Tensor, dim: int, q: float | Tensor, mirrored: bool) -> Tensor:
    """Scores carried along their line from ``-q 1`` onto the hyperplane of the simplex: the map is their sparsemax.

    In float32 or float64, of the shape of z.
    """
    check_scores(z, dim)
    q = per_row("q", q, z, dim).movedim(-1, dim) if torch.is_tensor(q) else float(Q.check("q", q))
    x = upcast(z)
    masked = x == -torch.inf
    count = (~masked).sum(dim, keepdim=True).to(x.dtype)
    total = x.masked_fill(masked, 0.0).sum(dim, keepdim=True)
    distance = ((total.abs() if mirrored else total) + count * q).masked_fill(count == 0, 1.0)
    if not mirrored and is_readable(distance) and bool((distance <= 0).any()):
        raise ValueError(
            f"sparsecone needs sum z + K q > 0 in every row, the smallest was {float(distance.min()):g}; "
            "use sparsehourglass, which is defined everywhere"
        )
    scaled = x.masked_fill(masked, 0.0) * ((1 + count * q) / distance)
    return scaled.masked_fill(masked, -torch.inf)


Q = Setting.between(
    0,
    1e9,
    default=1.0,
    from_real=torch.exp,
    to_real=torch.log,
)


def _register_hourglass(name: str, function: Callable[..., Tensor], mirrored: bool, any_scores: bool) -> None:
    def as_entmax(z: Tensor, dim: int, q: float) -> tuple[Tensor, float]:
        return _on_the_plane(z, dim, q, mirrored), 2.0

    # Its Jacobian is not symmetric: the map is not the gradient of a function.
    register(
        SparseMap(
            name,
            function,
            regularizer=None,
            settings={"q": Q},
            shift_invariant=False,
            any_scores=any_scores,
            as_entmax=as_entmax,
        )
    )


_register_hourglass("sparsehourglass", sparsehourglass, mirrored=True, any_scores=True)
_register_hourglass("sparsecone", sparsecone, mirrored=False, any_scores=False)
