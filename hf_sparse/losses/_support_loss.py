"""The derivative of a loss whose weights are known on their supports only, as padded columns and weights (N, C).

Between forward and backward only those are kept. The backward writes zeros and, over them, ``p - y``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import write_rows


def _add_at(dense: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Add values (N, C) to the columns ``index`` (N, C) of an (N, V) matrix given flat, in place.

    ``scatter_add_`` of half-precision tensors goes through a float32 copy of the whole matrix; this does not.
    """
    starts = torch.arange(len(index), device=index.device)[:, None] * (dense.numel() // max(len(index), 1))
    return dense.index_add_(0, (index + starts).flatten(), values.to(dense.dtype).flatten())


class SupportWeights(torch.autograd.Function):
    """Hands the weights at the columns ``index`` (N, C) on, with the Jacobian of the map as their derivative in z.

    That is ``Diag(s) - s s^T / sum s``, ``s = p^(2 - alpha)``, for entmax, and ``Diag(s)`` for alpha-ReLU, which is
    not normalized. Only second derivatives of the loss pass through here: its first is ``p - y`` whatever p's own.
    """

    @staticmethod
    def forward(ctx, z: Tensor, p: Tensor, index: Tensor, alpha: float, normalized: bool) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.alpha, ctx.normalized, ctx.shape, ctx.dtype = alpha, normalized, z.shape, z.dtype
        p = p.clone()
        ctx.save_for_backward(p, index)
        return p

    @staticmethod
    def backward(ctx, grad: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        if grad is None:
            return None, None, None, None, None
        p, index = ctx.saved_tensors
        support = p > 0
        s = torch.where(support, p, 1.0).pow(2 - ctx.alpha) * support
        values = grad * s
        if ctx.normalized:
            total = s.sum(-1, keepdim=True)
            values = values - s * (values.sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total))
        dense = torch.zeros(ctx.shape.numel(), dtype=ctx.dtype, device=p.device)
        return _add_at(dense, index, values).view(ctx.shape), None, None, None, None


class SupportLoss(torch.autograd.Function):
    """Hands the losses on, with ``p - y``, written on the support and at the target, as their derivative in z.

    With ``impl="cpp"``, for supports found by the kernel, it writes the derivative too.
    """

    @staticmethod
    def forward(ctx, z: Tensor, loss: Tensor, p: Tensor, index: Tensor, y: Tensor, impl: str) -> Tensor:
        ctx.shape, ctx.dtype, ctx.impl = z.shape, z.dtype, impl
        ctx.save_for_backward(p, index, y)
        return loss.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, index, y = ctx.saved_tensors
        if ctx.impl == "cpp" and not y.is_floating_point() and not torch.is_grad_enabled():
            return write_rows(index, p, ctx.shape[1], ctx.dtype, y, grad), None, None, None, None, None
        grad = torch.where(grad == 0, 0.0, grad)[:, None]
        p = torch.where(grad == 0, 0.0, p)  # a NaN row that does not count must not come back as 0 * NaN
        if y.is_floating_point():
            dense = (-grad * y).to(ctx.dtype).view(-1)
            values = p
        else:
            # One rounding for p_y - 1, so that half-precision gradients are as good as their dtype allows.
            hit = (index == y[:, None]) & (p > 0)
            missing = hit.any(-1, keepdim=True).to(p.dtype) - 1
            values = torch.cat([p - hit.to(p.dtype), missing], -1)
            index = torch.cat([index, y[:, None]], -1)
            dense = torch.zeros(ctx.shape.numel(), dtype=ctx.dtype, device=p.device)
        return _add_at(dense, index, values * grad).view(ctx.shape), None, None, None, None, None
