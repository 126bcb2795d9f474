"""The support of entmax, ragged, and its threshold."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..tracing import in_graph
from ._entmax import ALPHA
from ._entmax_rows import EntmaxRows
from .candidates import CANDIDATES_FROM, candidates, take
from .rows import check_scores, upcast


class Support(NamedTuple):
    """The nonzero weights of N rows. Row i owns the places ``offsets[i]`` up to ``offsets[i + 1]``.

    Attributes:
        indices: (M,) int64 columns, ascending within a row.
        values: (M,) positive weights, in float32 or float64; differentiable in the scores.
        offsets: (N + 1,) int64.
    """

    indices: Tensor
    values: Tensor
    offsets: Tensor


def entmax_support(z: Tensor, alpha: float = 1.5) -> Support:
    """The support of ``entmax(z, alpha)`` over the last axis, without the dense rows of weights.

    Args:
        z: scores (..., V), any floating-point dtype; the leading dimensions are flattened to N rows.
        alpha: above 1, up to 64.

    Returns:
        ``Support``. Memory is in proportion to the supports where rows have at least 1024 entries, alpha is at most 2
        and no row is mostly support; otherwise the weights are computed densely on the way. A row with a NaN comes
        back whole, with NaN values; a fully masked row is empty.

    Raises:
        TypeError: ``z`` is not a floating-point tensor, or ``alpha`` not a number.
        ValueError: ``alpha <= 1`` (softmax has no zeros to leave out), or an empty axis.

    Source: Peters et al. 2019, Eq. 7.
    Cost: one streaming read of z, and work in proportion to the supports.

    >>> entmax_support(torch.tensor([[2.0, -1.0, 1.0], [0.0, 5.0, 0.0]]))
    Support(indices=tensor([0, 2, 1]), values=tensor([0.8307, 0.1693, 1.0000]), offsets=tensor([0, 2, 3]))
    """
    columns, p, _ = _solve_supports(z, alpha)
    return ragged(p, columns, z.shape[-1])


def ragged(p: Tensor, columns: Tensor | None = None, length: int | None = None) -> Support:
    """The nonzeros of p (N, C), whose entries belong to ``columns`` (N, C) of rows of ``length``, or to their own."""
    if columns is None:
        columns = torch.arange(p.shape[-1], device=p.device).expand(p.shape)
    used = p != 0
    # Padding sorts to the end of its row, where the mask below drops it.
    columns = columns.masked_fill(~used, p.shape[-1] if length is None else length)
    columns, order = columns.sort(-1)
    used, p = used.gather(-1, order), p.gather(-1, order)
    offsets = torch.nn.functional.pad(used.sum(-1).cumsum(0), (1, 0))
    return Support(columns[used], p[used], offsets)


def entmax_threshold(z: Tensor, alpha: float = 1.5, dim: int = -1) -> Tensor:
    """The ``tau`` in ``entmax(z, alpha) = [(alpha - 1) z - tau]_+ ^ (1 / (alpha - 1))``.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        alpha: above 1, up to 64.
        dim: the axis mapped.

    Returns:
        float32 or float64, shape of ``z`` with size 1 along ``dim``; differentiable. ``inf`` for a fully masked row.

    Raises:
        TypeError, IndexError: see ``entmax``.
        ValueError: ``alpha <= 1`` (softmax has no threshold), or an empty axis.

    Source: Peters et al. 2019, Proposition 1.
    Cost: that of the support.

    >>> entmax_threshold(torch.tensor([2.0, 1.0, -1.0]), alpha=2.0)
    tensor([1.])
    """
    check_scores(z, dim)
    _, p, x = _solve_supports(z.movedim(dim, -1), alpha)
    masked = (x == -torch.inf).all(-1, keepdim=True)
    best = x.argmax(-1, keepdim=True)
    top, p = x.gather(-1, best).masked_fill(masked, 0.0), p.gather(-1, best).masked_fill(masked, 1.0)
    tau = ((alpha - 1) * top - p.pow(alpha - 1)).masked_fill(masked, torch.inf)
    return tau.view(*z.movedim(dim, -1).shape[:-1], 1).movedim(-1, dim)


def _solve_supports(z: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Columns (N, C) that hold the supports, the weights there, and the scores there (``-inf`` where unused)."""
    check_scores(z, -1)
    alpha = float(ALPHA.check("alpha", alpha))
    if alpha == 1:
        raise ValueError("alpha must be > 1, was 1.0: softmax has neither a threshold nor zeros to leave out")
    rows = z.reshape(-1, z.shape[-1])
    if z.shape[-1] >= CANDIDATES_FROM and alpha <= 2 and not in_graph() and not z.is_meta:
        columns, used = candidates(rows, alpha)
        if columns.shape[-1] > 0:
            x = upcast(take(rows, columns, used)).masked_fill(~used, -torch.inf)
            return columns, EntmaxRows.call(x, alpha, "torch"), x
    columns = torch.arange(z.shape[-1], device=z.device).expand(rows.shape)
    return columns, EntmaxRows.call(upcast(rows), alpha, "torch"), upcast(rows)
