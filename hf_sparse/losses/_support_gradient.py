"""Gradients of a loss whose weights are listed on their supports, as padded columns and weights (N, C).

Only those are kept for the backward pass, which writes zeros and adds ``p - y`` at the listed columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.rows import is_final, is_mapped
from ..kernels import write_rows


def _add_at(dense: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Add values (N, C) to a matrix (N, V) at the columns ``index`` (N, C): in place, but for vmap.

    Unlike ``scatter_add_``, this makes no float32 copy of a half-precision matrix.
    """
    if is_mapped(values):
        return dense.scatter_add(-1, index, values.to(dense.dtype))
    rows, num_classes = dense.shape
    starts = torch.arange(rows, device=index.device)[:, None] * num_classes
    dense.view(-1).index_add_(0, (index + starts).flatten(), values.to(dense.dtype).flatten())
    return dense


class SupportWeights(torch.autograd.Function):
    """Identity on the listed weights p in the forward pass; the map's Jacobian at z in the backward pass.

    With ``s = p^(2 - alpha)`` the Jacobian is ``Diag(s) - s s^T / sum s`` for entmax and ``Diag(s)`` for alpha-ReLU,
    which is not normalized. Only second derivatives of the loss need it: the first derivative is ``p - y``.
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
        dense = torch.zeros(ctx.shape, dtype=ctx.dtype, device=p.device)
        return _add_at(dense, index, values), None, None, None, None


class SupportLoss(torch.autograd.Function):
    """Identity on the losses in the forward pass; ``p - y``, at the listed columns and the target, in the backward.

    With ``impl="cpp"``, for supports that the C++ kernel found, the kernel writes the gradient too.
    """

    @staticmethod
    def forward(ctx, z: Tensor, loss: Tensor, p: Tensor, index: Tensor, y: Tensor, impl: str) -> Tensor:
        ctx.shape, ctx.dtype, ctx.impl = z.shape, z.dtype, impl
        ctx.save_for_backward(p, index, y)
        return loss.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, index, y = ctx.saved_tensors
        if ctx.impl == "cpp" and not y.is_floating_point() and is_final(grad):
            return write_rows(index, p, ctx.shape[1], ctx.dtype, y, grad), None, None, None, None, None
        grad = torch.where(grad == 0, 0.0, grad)[:, None]
        p = torch.where(grad == 0, 0.0, p)  # an ignored row of NaN must not give 0 * NaN
        if y.is_floating_point():
            dense = (-grad * y).to(ctx.dtype)
            values = p
        else:
            # One rounding for p_y - 1, so that half-precision gradients are as good as their dtype allows.
            hit = (index == y[:, None]) & (p > 0)
            missing = hit.any(-1, keepdim=True).to(p.dtype) - 1
            values = torch.cat([p - hit.to(p.dtype), missing], -1)
            index = torch.cat([index, y[:, None]], -1)
            dense = torch.zeros(ctx.shape, dtype=ctx.dtype, device=p.device)
        return _add_at(dense, index, values * grad), None, None, None, None, None
