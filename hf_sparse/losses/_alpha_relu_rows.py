"""The alpha-ReLU loss, a sum over the classes: ``Omega*(z) = (1/alpha) sum_j [u_j]_+^(alpha/(alpha-1))``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional._alpha_relu import unnormalized_negentropy
from ..functional._newton import exponent_of, power
from ..kernels import relu_supports
from ._entries_above import entries_above
from ._support_loss import SupportLoss, SupportWeights

# Below this length dense arithmetic in cache is faster than picking entries.
_LONG_ROW = 1024


def relu_mass(u: Tensor, alpha: float) -> Tensor:
    """``[u]_+^(alpha/(alpha-1))``, elementwise; NaN where u is, and twice differentiable for alpha > 2 too."""
    support = ~(u <= 0)
    return torch.where(support, torch.where(support, u, 1.0).pow(alpha / (alpha - 1)), 0.0)


def relu_rows(z: Tensor, alpha: float, tau: float, impl: str = "torch") -> tuple[Tensor, Tensor, Tensor] | None:
    """The support of alpha-ReLU in rows z (N, V), without a gradient.

    Args:
        z: scores of any floating-point dtype.
        alpha: above 1.
        tau: the threshold.
        impl: what finds it, ``"cpp"``, or anything else for torch.

    Returns:
        Columns (N, C), 0 where a row has fewer than C; the weights there, 0 where it has fewer; and ``mass`` (N,),
        float64, as in ``relu_loss``. None where picking entries does not pay.
    """
    z, exponent = z.detach().contiguous(), exponent_of(alpha)
    if impl == "cpp":
        return relu_supports(z, alpha, exponent, tau)
    cut = tau / (alpha - 1)
    entries = entries_above(z, cut - 4 * torch.finfo(z.dtype).eps * abs(cut))
    if entries is None:
        return None
    row, column, value = entries
    u = ((value if value.dtype == torch.float64 else value.float()) * (alpha - 1) - tau).clamp_(min=0)
    p = power(u, exponent)
    # Sequential float32 sums drift: thousands of small terms are added up in float64.
    mass = torch.zeros(len(z), dtype=torch.float64, device=z.device).index_add_(0, row, (p * u).double())
    counts = torch.bincount(row, minlength=len(z))
    width = int(counts.max()) if len(z) else 0
    if width > z.shape[1] // 4:  # padded to this, the other rows would take more room than z
        return None
    place = torch.arange(len(row), device=z.device) + (width * row - (counts.cumsum(0) - counts)[row])
    columns, weights = column.new_zeros(len(z), width), p.new_zeros(len(z), width)
    columns.view(-1)[place], weights.view(-1)[place] = column, p
    return columns, weights, mass


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
    found = None
    if z.shape[1] >= _LONG_ROW and not torch.compiler.is_compiling():
        with torch.no_grad():
            found = relu_rows(z, alpha, tau, impl)
    if found is None:
        wide = z if z.dtype == torch.float64 else z.float()
        return relu_rows_loss(relu_mass(wide * (alpha - 1) - tau, alpha).sum(-1), wide, y, alpha, tau)
    columns, p, mass = found
    loss = relu_rows_loss(mass, z.detach(), y, alpha, tau).to(p.dtype)
    if torch.is_grad_enabled() and z.requires_grad:
        loss = SupportLoss.apply(z, loss, SupportWeights.apply(z, p, columns, alpha, False), columns, y, impl)
    return loss


def relu_rows_loss(mass: Tensor, z: Tensor, y: Tensor, alpha: float, tau: float) -> Tensor:
    """The losses (N,) of class targets (N,) or distributions (N, V), given ``mass`` as in ``relu_loss``."""
    if y.is_floating_point():
        return mass / alpha + unnormalized_negentropy(y, alpha, tau) - torch.where(y > 0, z * y, 0.0).sum(-1)
    return relu_loss(mass, z.gather(-1, y[:, None])[:, 0], alpha, tau)
