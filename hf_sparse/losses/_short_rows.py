"""The entmax loss of rows too short to be searched for their supports, solved whole by the C++ kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.newton import exponent_of
from ..functional.rows import upcast
from ..kernels import entmax_residuals
from ._row_terms import differentiable_gradient, from_conjugate, weighted


class _ShortRows(torch.autograd.Function):
    """The losses; ``p - y`` in the backward, whose own derivative is the map's."""

    @staticmethod
    def forward(ctx, z: Tensor, y: Tensor, alpha: float) -> Tensor:
        soft = y.is_floating_point()
        scores = upcast(z) if soft or z.dtype == torch.float16 else z  # float16 loses small weights
        found = entmax_residuals(scores, None if soft else y, alpha, exponent_of(alpha))
        top = found.top.masked_fill(found.top == -torch.inf, 0.0)[:, None]
        ctx.alpha = alpha
        ctx.save_for_backward(z, y, found.residual - y if soft else found.residual)
        return from_conjugate(found.conjugate, z, y, top, alpha)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, y, residual = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: rebuild p with its own graph
            return differentiable_gradient(z, y, grad, ctx.alpha, None), None, None
        return weighted(residual, grad).to(z.dtype), None, None


def short_rows_loss(z: Tensor, y: Tensor, alpha: float) -> Tensor:
    """The entmax losses (N,), float32, of short rows on a CPU.

    Args:
        z: scores (N, V) of a dtype that the kernel takes; ``-inf`` masks an entry.
        y: classes (N,), int64, or distributions (N, V).
        alpha: of the map, in (1, 2].

    Cost: one read of z and one write of the gradient, which is kept, in the forward pass; one pass in the backward.
    """
    return _ShortRows.apply(z, y, alpha)
