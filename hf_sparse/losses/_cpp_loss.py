"""Gradients of losses whose rows the C++ kernel solved, some of them whole, since most of their scores have weight."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.newton import exponent_of
from ..functional.rows import is_final
from ..kernels import ReluSupports, Supports, write_crowded, write_rows
from ._row_terms import differentiable_gradient


class _CppLoss(torch.autograd.Function):
    """Identity on the losses in the forward pass; ``p - y`` in the backward, whose own derivative is the map's."""

    @staticmethod
    def forward(
        ctx, z: Tensor, loss: Tensor, y: Tensor, solved: Supports | ReluSupports, alpha: float, tau: float | None
    ) -> Tensor:
        ctx.alpha, ctx.tau = alpha, tau
        ctx.save_for_backward(z, y, solved.columns, solved.p, solved.crowded, solved.solution)
        return loss.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, y, columns, p, crowded, solution = ctx.saved_tensors
        soft = y.is_floating_point()
        if not is_final(grad):  # a second derivative may be wanted: rebuild p with its own graph
            return differentiable_gradient(z, y, grad, ctx.alpha, ctx.tau), None, None, None, None, None
        target = None if soft else y
        dtype = torch.float32 if soft else z.dtype
        out = write_rows(columns, p, z.shape[1], dtype, target, grad, crowded)
        scores = z.to(dtype).contiguous()
        write_crowded(scores, crowded, solution, grad, target, ctx.alpha, exponent_of(ctx.alpha), out)
        if soft:
            out = out.addcmul_(torch.where(grad == 0, 0.0, grad)[:, None], y, value=-1).to(z.dtype)
        return out, None, None, None, None, None


def with_cpp_gradient(
    z: Tensor, loss: Tensor, y: Tensor, solved: Supports | ReluSupports, alpha: float, tau: float | None = None
) -> Tensor:
    """The losses (N,) with their gradient ``p - y`` in the scores z (N, V).

    Args:
        z: scores (N, V) that the kernel solved.
        loss: (N,) float32, without a gradient.
        y: classes (N,), int64, or distributions (N, V).
        solved: what the kernel returned, with a solution.
        alpha: of the map.
        tau: the threshold of alpha-ReLU; None for entmax.

    Cost: one write; memory between the passes is that of the scores.
    """
    return _CppLoss.apply(z, loss, y, solved, alpha, tau)
