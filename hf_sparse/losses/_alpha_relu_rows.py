"""The alpha-ReLU loss, a sum over the classes: ``Omega*(z) = (1/alpha) sum_j [u_j]_+^(alpha/(alpha-1))``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional._alpha_relu import unnormalized_negentropy
from ..functional._newton import exponent_of, power
from ._entries_above import entries_above

# Below this length dense arithmetic in cache is faster than picking entries.
_LONG_ROW = 1024


class _SupportWeights(torch.autograd.Function):
    """``p = [u]_+^(1/(alpha-1))`` of the listed entries (M,), whose derivative in z is ``p^(2-alpha)``."""

    @staticmethod
    def forward(ctx, z: Tensor, p: Tensor, place: Tensor, alpha: float) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.alpha, ctx.shape, ctx.dtype = alpha, z.shape, z.dtype
        p = p.clone()
        ctx.save_for_backward(p, place)
        return p

    @staticmethod
    def backward(ctx, grad: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        if grad is None:
            return None, None, None, None
        p, place = ctx.saved_tensors
        values = grad * torch.where(p > 0, p, 1.0).pow(2 - ctx.alpha) * (p > 0)
        dense = torch.zeros(ctx.shape.numel(), dtype=ctx.dtype, device=p.device)
        return dense.index_add(0, place, values.to(ctx.dtype)).view(ctx.shape), None, None, None


class _SupportLoss(torch.autograd.Function):
    """Hands the losses on, with ``p - y``, written on the support and at the target, as their derivative in z."""

    @staticmethod
    def forward(ctx, z: Tensor, loss: Tensor, p: Tensor, row: Tensor, place: Tensor, y: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = z.shape, z.dtype
        ctx.save_for_backward(p, row, place, y)
        return loss.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, row, place, y = ctx.saved_tensors
        values = torch.where(grad[row] == 0, 0.0, p * grad[row])
        if y.is_floating_point():
            dense = (-grad[:, None] * y).to(ctx.dtype).view(-1)
        else:
            # One rounding for p_y - 1: the target leaves the support's entries and is written last, on its own.
            gold_place = torch.arange(len(y), device=y.device) * ctx.shape[1] + y
            gold = place == gold_place[row]
            target = (-grad).index_add(0, row[gold], values[gold])
            values = torch.where(gold, 0.0, values)
            values, place = torch.cat([values, target]), torch.cat([place, gold_place])
            dense = torch.zeros(ctx.shape.numel(), dtype=ctx.dtype, device=p.device)
        return dense.index_add_(0, place, values.to(ctx.dtype)).view(ctx.shape), None, None, None, None, None


def relu_mass(u: Tensor, alpha: float) -> Tensor:
    """``[u]_+^(alpha/(alpha-1))``, elementwise; NaN where u is, and twice differentiable for alpha > 2 too."""
    support = ~(u <= 0)
    return torch.where(support, torch.where(support, u, 1.0).pow(alpha / (alpha - 1)), 0.0)


def support_above(z: Tensor, alpha: float, tau: float, impl: str = "torch") -> tuple[Tensor, Tensor, Tensor] | None:
    """Rows, columns and excess ``u = (alpha - 1) z - tau > 0`` of the support, flat; None where it is most of z."""
    cut = tau / (alpha - 1)
    entries = entries_above(z, cut - 4 * torch.finfo(z.dtype).eps * abs(cut), impl)
    if entries is None:
        return None
    row, column, value = entries
    value = value if value.dtype == torch.float64 else value.float()
    return row, column, (value * (alpha - 1) - tau).clamp(min=0)


def relu_loss(mass: Tensor, gold: Tensor, alpha: float, tau: float) -> Tensor:
    """The losses (N,) of class targets with scores ``gold``, exactly zero where ``u_y = 1`` is the only mass.

    ``mass`` is ``sum_j [u_j]_+^(alpha/(alpha-1))`` of each row.
    """
    return (mass - 1) / alpha + (1 - (gold.to(mass.dtype) * (alpha - 1) - tau)) / (alpha - 1)


def alpha_relu_rows_loss(z: Tensor, y: Tensor, alpha: float, tau: float, impl: str = "torch") -> Tensor:
    """``Omega*(z) + Omega(y) - <z, y>`` row by row, gradient ``[u]_+^(1/(alpha-1)) - y``.

    Args:
        z: scores (N, V), any floating-point dtype.
        y: classes (N,), int64, or distributions (N, V).
        alpha: above 1.
        tau: the threshold.
        impl: what finds the support of long rows, ``"torch"`` or ``"cpp"``.

    Returns:
        Losses (N,), float32 or float64.

    Cost: one read of z where the support is short (backward: zeros and a scatter), else five passes.
    """
    support = None
    if z.shape[1] >= _LONG_ROW and not torch.compiler.is_compiling():
        with torch.no_grad():
            support = support_above(z.detach().contiguous(), alpha, tau, impl)
    if support is None:
        wide = z if z.dtype == torch.float64 else z.float()
        return relu_rows_loss(relu_mass(wide * (alpha - 1) - tau, alpha).sum(-1), wide, y, alpha, tau)
    row, column, u = support
    p = power(u, exponent_of(alpha))
    # Sequential float32 sums drift: thousands of small terms are added up in float64.
    mass = torch.zeros(len(z), dtype=torch.float64, device=z.device).index_add_(0, row, (p * u).double())
    loss = relu_rows_loss(mass, z.detach(), y, alpha, tau).to(p.dtype)
    if torch.is_grad_enabled() and z.requires_grad:
        place = row * z.shape[1] + column
        loss = _SupportLoss.apply(z, loss, _SupportWeights.apply(z, p, place, alpha), row, place, y)
    return loss


def relu_rows_loss(mass: Tensor, z: Tensor, y: Tensor, alpha: float, tau: float) -> Tensor:
    """The losses (N,) of class targets (N,) or distributions (N, V), given ``mass`` as in ``relu_loss``."""
    if y.is_floating_point():
        return mass / alpha + unnormalized_negentropy(y, alpha, tau) - torch.where(y > 0, z * y, 0.0).sum(-1)
    return relu_loss(mass, z.gather(-1, y[:, None])[:, 0], alpha, tau)
