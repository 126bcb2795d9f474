"""The entmax loss of long rows, on their supports alone: the logits are read once and never copied.

Forward solves each row on its few candidate entries. Backward writes zeros and scatters ``p - y`` over the support.
Between the two, only (index, weight) pairs are kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional._candidates import SolvedRows, solve_long_rows
from ..functional._entmax import tsallis_negentropy
from ..functional._newton import exponent_of, power


def _add_at(dense: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Add values (N, C) to the columns ``index`` (N, C) of an (N, V) matrix given flat, in place.

    ``scatter_add_`` of half-precision tensors goes through a float32 copy of the whole matrix; this does not.
    """
    starts = torch.arange(len(index), device=index.device)[:, None] * (dense.numel() // max(len(index), 1))
    return dense.index_add_(0, (index + starts).flatten(), values.to(dense.dtype).flatten())


class _SupportWeights(torch.autograd.Function):
    """Hands the weights on the candidates (N, C) on, with the Jacobian of entmax as their derivative in z.

    Only second derivatives of the loss pass through here: its first is ``p - y`` whatever p's derivative.
    """

    @staticmethod
    def forward(ctx, z: Tensor, p: Tensor, index: Tensor, alpha: float) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.alpha, ctx.shape, ctx.dtype = alpha, z.shape, z.dtype
        p = p.clone()
        ctx.save_for_backward(p, index)
        return p

    @staticmethod
    def backward(ctx, grad: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        if grad is None:
            return None, None, None, None
        p, index = ctx.saved_tensors
        support = p > 0
        s = torch.where(support, p, 1.0).pow(2 - ctx.alpha) * support
        weighted = grad * s
        total = s.sum(-1, keepdim=True)
        values = weighted - s * (weighted.sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total))
        dense = torch.zeros(ctx.shape.numel(), dtype=ctx.dtype, device=p.device)
        return _add_at(dense, index, values).view(ctx.shape), None, None, None


class _SupportLoss(torch.autograd.Function):
    """Hands the losses on, with ``p - y``, written on the support and at the target, as their derivative in z."""

    @staticmethod
    def forward(ctx, z: Tensor, loss: Tensor, p: Tensor, index: Tensor, y: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = z.shape, z.dtype
        ctx.save_for_backward(p, index, y)
        return loss.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, index, y = ctx.saved_tensors
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
        return _add_at(dense, index, values * grad).view(ctx.shape), None, None, None, None


def support_weights(solved: SolvedRows, alpha: float) -> Tensor:
    """The weights p of the candidates (N, C), summing to one in each row; NaN in rows whose scores hold a NaN."""
    p = power(solved.u, exponent_of(alpha))
    mass = p.sum(-1, keepdim=True)
    p = p / torch.where(mass == 0, 1.0, mass)
    return torch.where(solved.top < torch.inf, p, torch.nan)


def support_conjugate(solved: SolvedRows, p: Tensor, alpha: float) -> Tensor:
    """``Omega*(z) - max z = <p, z - max z> - Omega(p)`` of each row (N,)."""
    inner = torch.where(p > 0, p * solved.x, p).sum(-1) / (alpha - 1)
    return inner - tsallis_negentropy(p, alpha)


def entmax_rows_loss(z: Tensor, y: Tensor, alpha: float, impl: str = "torch") -> tuple[Tensor, Tensor]:
    """The entmax loss of the rows whose support is short, and which rows those are.

    Args:
        z: scores (N, V), any floating-point dtype, V at least 1024.
        y: classes (N,), int64, or distributions (N, V).
        alpha: in (1, 2].
        impl: what solves the rows, ``"torch"`` or ``"cpp"``.

    Returns:
        Losses (N,), float32 or float64, and a mask (N,) of the rows that need a dense solve instead, whose losses
        here mean nothing.

    Cost: forward one read of z, backward zeros and a scatter; O(N C) memory between them.
    """
    with torch.no_grad():
        solved = solve_long_rows(z, alpha, impl)
        p = support_weights(solved, alpha)
        top = solved.top.masked_fill(solved.top == -torch.inf, 0.0)
        loss = support_conjugate(solved, p, alpha)
        if y.is_floating_point():
            gold = torch.where(y > 0, (z.to(y.dtype) - top) * y, 0.0).sum(-1)
            loss = loss + tsallis_negentropy(y, alpha) - gold
        else:
            loss = loss - (z.gather(-1, y[:, None]).to(top.dtype) - top)[:, 0]
        loss = loss.to(torch.float64 if z.dtype == torch.float64 else torch.float32)
    if torch.is_grad_enabled() and z.requires_grad:
        p = _SupportWeights.apply(z, p, solved.columns, alpha)
        loss = _SupportLoss.apply(z, loss, p, solved.columns, y)
    return loss, solved.wide
