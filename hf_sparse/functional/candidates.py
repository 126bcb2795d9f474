"""Long rows: find the few entries that can be in the support in one streaming read, and solve on those alone.

The threshold of any subset of a row is a lower bound of the row's own threshold. The subset taken here is the maxima
of small chunks: it holds the largest entries, so the bound is nearly tight, and a chunk whose maximum lies below it is
dropped whole. Nothing outside the candidates is in the support, by construction: no k to choose, nothing to verify.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import Supports, entmax_supports, write_rows
from .chunks import Padding, chunk_maxima, entries_from
from .function import Function, batched
from .newton import dtype_for, exponent_of, power, solve_
from .rows import row_by_row

# From this length on, candidates are faster than a dense solve in cache.
CANDIDATES_FROM = 1024
# Maps solve rows densely where more than this share of the chunks hold candidates.
_MOST_CHUNKS = 0.75
# As many rows are looked at before all others: to find that one is crowded at the end takes longer than to solve all.
_SAMPLE = 8


class CandidateRows(NamedTuple):
    """Rows (N, V) solved on at most C candidates each, their columns ascending within a row.

    Attributes:
        columns: (N, C) int64, the candidates; 0 where a row has fewer than C. ``put`` writes p back.
        x: (N, C) ``(alpha - 1) (z - max z)``, at most 0; ``-inf`` where a row has fewer than C.
        u: (N, C) ``[x - tau]_+``: positive exactly on the support, so ``p = u ** (1 / (alpha - 1))``, and zero where
            a row has fewer than C.
        top: (N, 1) the row's maximum; ``-inf`` for a fully masked row, NaN or ``inf`` for a row that holds such a
            score. Neither has candidates; the weights of the latter are NaN.
        crowded: (N,) bool, rows with too many candidates to list, which have none here: solve them densely,
            ``solve_((x - bound).clamp_(min=0), exponent)``.
        bound: (N, 1) a lower bound of tau, in units of x; close to tau.
    """

    columns: Tensor
    x: Tensor
    u: Tensor
    top: Tensor
    crowded: Tensor
    bound: Tensor


def solve_long_rows(z: Tensor, alpha: float, most: float = 1.0) -> CandidateRows:
    """alpha-entmax of long rows, on their candidates.

    Args:
        z: (N, V) scores of any floating-point dtype, V at least 1024, on any device; ``-inf`` masks an entry.
        alpha: in (1, 2].
        most: see ``entries_from``.

    Returns:
        ``CandidateRows``, float32 (float64 for float64 scores and for alpha below 1.1). No gradient flows through it.

    Cost: one streaming read of z (an ``amax``), a copy of the chunks that hold candidates, and work in proportion to
    the candidates, whose number is close to that of the support.
    """
    exponent = exponent_of(alpha)
    z = z.detach().contiguous()
    dtype = dtype_for(alpha, z)
    maxima = chunk_maxima(z).to(dtype)
    top = maxima.amax(1, keepdim=True)

    # In exact numbers, every entry of the support exceeds top + bound / (alpha - 1); rounded, it is at least that.
    # Rows without a finite maximum get a NaN bound, which nothing reaches.
    u = solve_(maxima.sub(top).mul_(alpha - 1).add_(1).clamp_(min=0), exponent)
    bound = -u.amax(1, keepdim=True) - 64 * torch.finfo(dtype).eps
    row, column, value, crowded = entries_from(z, maxima, top + bound / (alpha - 1), most)
    x = value.sub_(top[row, 0]).mul_(alpha - 1)

    padding = Padding.of(row, len(z))
    u = solve_(padding.fill((x - bound[row, 0]).clamp_(min=0), 0.0), exponent)
    return CandidateRows(padding.fill(column, 0), padding.fill(x, -torch.inf), u, top, crowded, bound)


def _solve_all(z: Tensor, alpha: float) -> CandidateRows | None:
    """``solve_long_rows``, or None where a row has weights, NaN included, but no candidates."""
    if len(z) > _SAMPLE**2:
        sample = torch.linspace(0, len(z) - 1, _SAMPLE, dtype=torch.int64, device=z.device)
        if _any_left(solve_long_rows(z[sample], alpha, _MOST_CHUNKS)):
            return None
    solved = solve_long_rows(z, alpha, _MOST_CHUNKS)
    return None if _any_left(solved) else solved


def _any_left(solved: CandidateRows | Supports) -> bool:
    """Whether some row has weights, NaN included, but no candidates."""
    return bool((solved.crowded | ~(solved.top < torch.inf)[:, 0]).any())


class _Candidates(Function):
    """The candidates of long rows, constants to autograd, with a rule for vmap."""

    @staticmethod
    def forward(z: Tensor, alpha: float, impl: str) -> tuple[Tensor, Tensor]:
        solved = entmax_supports(z, alpha, exponent_of(alpha)) if impl == "cpp" else _solve_all(z, alpha)
        if solved is None or _any_left(solved):
            return z.new_empty((len(z), 0), dtype=torch.int64), z.new_empty((len(z), 0), dtype=torch.bool)
        return solved.columns, (solved.p if isinstance(solved, Supports) else solved.u) > 0

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx, *grads) -> tuple[None, None, None]:
        return None, None, None

    @staticmethod
    def tangent(ctx, *tangents) -> tuple[None, None]:
        return None, None

    @staticmethod
    def vmap(info, in_dims, z: Tensor, alpha: float, impl: str):
        z = z.movedim(in_dims[0], 0)
        columns, used = _Candidates.call(z.flatten(0, 1), alpha, impl)
        return (columns.unflatten(0, z.shape[:2]), used.unflatten(0, z.shape[:2])), (0, 0)


def candidates(z: Tensor, alpha: float, impl: str = "torch") -> tuple[Tensor, Tensor]:
    """Columns that hold each row's support, ascending, and a mask of those used; both (N, C).

    C is 0 where the rows are to be solved densely: one of them is crowded or holds a NaN or infinite score, or all are
    fully masked. Works under ``torch.func`` transforms.
    """
    return _Candidates.call(z, alpha, impl)


class _Take(Function):
    """``gather`` whose backward writes instead of adding: used columns of a row are distinct."""

    @staticmethod
    def forward(z: Tensor, columns: Tensor, used: Tensor, impl: str) -> Tensor:
        return z.gather(-1, columns).masked_fill_(~used, 0.0)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        z, *places, ctx.impl = inputs
        ctx.length = z.shape[-1]
        Function.save(ctx, *places)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _Put.call(grad, *ctx.saved_tensors, ctx.length, ctx.impl), None, None, None

    @staticmethod
    def tangent(ctx, of_z: Tensor, *rest: None) -> Tensor:
        return _Take.call(of_z, *ctx.saved_tensors, ctx.impl)

    @staticmethod
    def vmap(info, in_dims, *inputs) -> tuple[Tensor, int]:
        *tensors, impl = inputs
        return _Take.call(*batched(info.batch_size, in_dims, tensors), impl), 0


class _Put(Function):
    """The transpose of ``_Take``."""

    @staticmethod
    def forward(values: Tensor, columns: Tensor, used: Tensor, length: int, impl: str) -> Tensor:
        if impl == "cpp" and row_by_row(values):
            flat = values.float().masked_fill(~used, 0.0).flatten(0, -2)
            out = write_rows(columns.flatten(0, -2), flat, length, values.dtype)
            return out.view(*values.shape[:-1], length)
        out = values.new_zeros((*values.shape[:-1], length))
        row = torch.arange(out.numel() // length, device=out.device).view(*values.shape[:-1], 1)
        # Not scatter_, which copies whole rows to float32 when they are in half precision.
        out.view(-1).index_put_(((columns + row * length)[used],), values[used])
        return out

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, *places, ctx.length, ctx.impl = inputs
        Function.save(ctx, *places)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _Take.call(grad, *ctx.saved_tensors, ctx.impl), None, None, None, None

    @staticmethod
    def tangent(ctx, of_values: Tensor, *rest: None) -> Tensor:
        return _Put.call(of_values, *ctx.saved_tensors, ctx.length, ctx.impl)

    @staticmethod
    def vmap(info, in_dims, *inputs) -> tuple[Tensor, int]:
        *tensors, length, impl = inputs
        return _Put.call(*batched(info.batch_size, in_dims, tensors), length, impl), 0


def values_on_candidates(z: Tensor, alpha: float) -> Tensor | None:
    """p (..., V) of long rows, without a gradient; None where dense arithmetic is faster."""
    solved = _solve_all(z.reshape(-1, z.shape[-1]), alpha)
    if solved is None or solved.columns.shape[-1] == 0:
        return None
    p = power(solved.u, exponent_of(alpha))
    mass = p.sum(-1, keepdim=True)
    p = (p / torch.where(mass == 0, 1.0, mass)).to(z.dtype)
    return _Put.forward(p, solved.columns, solved.u > 0, z.shape[-1], "torch").view(z.shape)


def take(z: Tensor, columns: Tensor, used: Tensor, impl: str = "torch") -> Tensor:
    """z (N, V) at the used columns (N, C), distinct in each row; 0 elsewhere. Differentiable.

    ``impl="cpp"``, for columns that ``candidates`` found by the kernel, writes the gradient by the kernel, too.
    """
    return _Take.call(z, columns, used, impl)


def put(values: Tensor, columns: Tensor, used: Tensor, length: int, impl: str = "torch") -> Tensor:
    """Rows of zeros (N, length) with the used values (N, C) at their columns. Differentiable.

    ``impl`` as in ``take``.

    >>> put(torch.tensor([[0.7, 0.3]]), torch.tensor([[2, 0]]), torch.tensor([[True, True]]), 4)
    tensor([[0.3000, 0.0000, 0.7000, 0.0000]])
    """
    return _Put.call(values, columns, used, length, impl)
