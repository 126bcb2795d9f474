"""sparsehourglass and sparsecone (Laha et al. 2018): from scale invariance at q = 0 towards sparsemax."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ._entmax import entmax_rows
from ._in_chunks import in_chunks
from .registry import Setting, SparseMap, register
from .rows import (
    accumulation_dtype,
    check_scores,
    hidden,
    is_readable,
    map_rows,
    masked_as,
    per_row,
    unmasked,
    upcast,
)


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
    Cost: that of ``sparsemax`` and a dozen passes in cache.

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
    q = per_row("q", q, z, dim) if torch.is_tensor(q) else float(Q.check("q", q))
    x = z.movedim(dim, -1)
    if not mirrored and is_readable(x):
        distance = _line(upcast(x.detach()), q, mirrored).distance
        if bool((distance <= 0).any()):
            raise ValueError(
                f"sparsecone needs sum z + K q > 0 in every row, the smallest was {float(distance.min()):g}; "
                "use sparsehourglass, which is defined everywhere"
            )
    if torch.is_tensor(q):
        return _carried(upcast(x), q, mirrored).movedim(-1, dim)
    carried, gradient = (partial(function, q=q, mirrored=mirrored) for function in (_carried, _gradient))
    return in_chunks(carried, gradient, x, accumulation_dtype(x)).movedim(-1, dim)


class _Line(NamedTuple):
    """Where a row (..., K) is on its line.

    Attributes:
        visible: (..., K) the scores, 0 where masked.
        total: (..., 1) their sum.
        distance: (..., 1) ``|sum z| + Kq``, of a row that is masked 1.
        factor: (..., 1) ``1 + Kq`` over it.
    """

    visible: Tensor
    total: Tensor
    distance: Tensor
    factor: Tensor


def _line(x: Tensor, q: float | Tensor, mirrored: bool) -> _Line:
    count = (1 - hidden(x)).sum(-1, keepdim=True)
    visible = unmasked(x, 0.0)
    total = visible.sum(-1, keepdim=True)
    distance = ((total.abs() if mirrored else total) + count * q).masked_fill(count == 0, 1.0)
    return _Line(visible, total, distance, (1 + count * q) / distance)


def _carried(x: Tensor, q: float | Tensor, mirrored: bool) -> Tensor:
    line = _line(x, q, mirrored)
    return masked_as(x, line.visible * line.factor)


def _gradient(x: Tensor, grad: Tensor, q: float, mirrored: bool) -> Tensor:
    """``c g - c (g . z) / distance``, c the factor, the sign of the sum turned with it where it is mirrored."""
    line = _line(x, q, mirrored)
    turned = line.total.sign() if mirrored else 1.0
    by_distance = (grad * line.visible).sum(-1, keepdim=True).div_(line.distance).mul_(turned)
    return torch.sub(grad, by_distance).mul_(line.factor).mul_(1 - hidden(x))


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
