"""Functions of rows written with torch's operations, on a cache-sized number of rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from .function import Function, differentiated_again
from .rows import by_chunks, check_scores, is_transformed, row_by_row, upcast

# A function of the last axis of a float32 or float64 tensor, the same for each row and of nothing else.
Rows: TypeAlias = Callable[[Tensor], Tensor]
# (x, grad) -> the gradient at x where grad is that of the result.
Gradient: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def map_in_chunks(rows: Rows, gradient: Gradient, z: Tensor, dim: int) -> Tensor:
    """``map_rows(rows, z, dim)``, computed by ``in_chunks``; errors as there."""
    check_scores(z, dim)
    return in_chunks(rows, gradient, z.movedim(dim, -1), z.dtype).movedim(-1, dim)


def in_chunks(rows: Rows, gradient: Gradient, x: Tensor, dtype: torch.dtype) -> Tensor:
    """``rows(upcast(x))`` for x (..., V) of any floating-point dtype, in ``dtype``; differentiable as it is.

    A dozen operations on a large tensor wait for memory most of their time. In chunks their results stay in the cache,
    and none is kept: ``gradient`` starts from x again.
    """
    if not row_by_row(x) or is_transformed(x):
        return rows(upcast(x)).to(dtype)
    return _InChunks.apply(x, rows, gradient, dtype)


class _InChunks(Function):
    @staticmethod
    def forward(x: Tensor, rows: Rows, gradient: Gradient, dtype: torch.dtype) -> Tensor:
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        by_chunks(lambda x, out: out.copy_(rows(upcast(x))), x, out=out.view(-1, x.shape[-1]))
        return out

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, ctx.rows, ctx.gradient, _ = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        if differentiated_again() or not row_by_row(x, grad):
            with torch.enable_grad():
                again = ctx.rows(upcast(x)).to(grad.dtype)
                return *torch.autograd.grad(again, x, grad, create_graph=True), None, None, None
        gradient = ctx.gradient
        return by_chunks(lambda x, grad, out: out.copy_(gradient(upcast(x), upcast(grad))), x, grad), None, None, None
