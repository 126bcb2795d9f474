"""The alpha-ReLU loss of rows, dense or on their supports.

It is separable: ``Omega*(z) = (1/alpha) sum_j [u_j]_+^(alpha/(alpha-1))`` with ``u = (alpha - 1) z - tau``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.chunks import MOST_CHUNKS, Padding, chunk_maxima, entries_from
from ..functional.negentropy import unnormalized_negentropy
from ..functional.newton import dtype_for, exponent_of, power
from ..functional.rows import accumulation_dtype, is_transformed, upcast
from ..kernels import ReluSupports, relu_supports
from ._cpp_loss import with_cpp_gradient
from ._row_terms import target_scores
from ._support_gradient import SupportLoss, SupportWeights


def relu_mass(z: Tensor, alpha: float, tau: float) -> Tensor:
    """``[u]_+^(alpha/(alpha-1))``, elementwise: NaN where u is NaN, twice differentiable for alpha > 2 too.

    float32 or float64, as ``dtype_for`` says.
    """
    u = z.to(dtype_for(alpha, z)) * (alpha - 1) - tau
    if not u.requires_grad and not is_transformed(u):
        return power(u.clamp_(min=0), exponent_of(alpha) + 1)
    support = ~(u <= 0)
    return torch.where(support, torch.where(support, u, 1.0).pow(alpha / (alpha - 1)), 0.0)


def relu_row_supports(z: Tensor, alpha: float, tau: float, impl: str = "torch") -> ReluSupports:
    """The supports of alpha-ReLU in long rows, without a gradient.

    Args:
        z: scores (N, V), any floating-point dtype, V at least 1024.
        alpha: above 1.
        tau: the threshold.
        impl: ``"cpp"``; anything else means torch.
    """
    z, exponent = z.detach().contiguous(), exponent_of(alpha)
    if impl == "cpp":
        return relu_supports(z, alpha, exponent, tau)
    dtype = dtype_for(alpha, z)
    maxima = chunk_maxima(z).to(dtype)
    cut = tau / (alpha - 1)
    cut -= 4 * torch.finfo(dtype).eps * abs(cut)
    row, column, value, crowded = entries_from(z, maxima, maxima.new_full((len(z), 1), cut), MOST_CHUNKS)
    u = value.mul_(alpha - 1).sub_(tau).clamp_(min=0)
    p = power(u, exponent)
    # Sequential float32 sums drift, so thousands of small terms are summed in float64.
    mass = torch.zeros(len(z), dtype=torch.float64, device=z.device).index_add_(0, row, (p * u).double())
    padding = Padding.of(row, len(z))
    # NaN fails every comparison with the bound; rows that hold one are left to the dense formula.
    return ReluSupports(padding.fill(column, 0), padding.fill(p, 0.0), mass, crowded | maxima.isnan().any(1))


def relu_loss(mass: Tensor, gold: Tensor, alpha: float, tau: float) -> Tensor:
    """The losses (N,) of class targets, exactly zero where ``u_y = 1`` is the only mass.

    Args:
        mass: (N,) ``sum_j [u_j]_+^(alpha/(alpha-1))``.
        gold: (N,) ``z_y``.
        alpha: above 1.
        tau: the threshold.
    """
    return (mass - 1) / alpha + (1 - (gold.to(mass.dtype) * (alpha - 1) - tau)) / (alpha - 1)


def relu_support_loss(z: Tensor, y: Tensor, alpha: float, tau: float, impl: str = "torch") -> tuple[Tensor, Tensor]:
    """The alpha-ReLU loss of the rows whose support is small enough to be listed.

    Args:
        z: scores (N, V), any floating-point dtype, V at least 1024.
        y: classes (N,), int64, or distributions (N, V).
        alpha: above 1.
        tau: the threshold.
        impl: ``"cpp"``; anything else means torch.

    Returns:
        As ``entmax_support_loss``.
    """
    with torch.no_grad():
        solved = relu_row_supports(z, alpha, tau, impl)
        loss = relu_loss_from_mass(solved.mass, z, y, alpha, tau).to(accumulation_dtype(z))
    wanted = torch.is_grad_enabled() and z.requires_grad
    if solved.solution is not None and bool(solved.crowded.any()):
        loss = with_cpp_gradient(z, loss, y, solved, alpha, tau) if wanted else loss
        return loss, torch.zeros_like(solved.crowded)
    if wanted:
        p = SupportWeights.apply(z, solved.p, solved.columns, alpha, False)
        loss = SupportLoss.apply(z, loss, p, solved.columns, y, impl)
    return loss, solved.crowded


def relu_dense_loss(z: Tensor, y: Tensor, alpha: float, tau: float) -> Tensor:
    """``Omega*(z) + Omega(y) - <z, y>`` per row, with gradient ``[u]_+^(1/(alpha-1)) - y``; five passes.

    Args:
        z: scores (N, V), any floating-point dtype.
        y: classes (N,), int64, or distributions (N, V).
        alpha: above 1.
        tau: the threshold.

    Returns:
        Losses (N,), float32 or float64.
    """
    mass = relu_mass(z, alpha, tau).sum(-1)
    return relu_loss_from_mass(mass, upcast(z), y, alpha, tau).to(accumulation_dtype(z))


def relu_loss_from_mass(mass: Tensor, z: Tensor, y: Tensor, alpha: float, tau: float) -> Tensor:
    """The losses (N,) for classes y (N,) or distributions y (N, V); ``mass`` as in ``relu_loss``."""
    if y.is_floating_point():
        return mass / alpha + unnormalized_negentropy(y, alpha, tau) - target_scores(z, y, y.new_zeros(len(y), 1))
    return relu_loss(mass, z.gather(-1, y[:, None])[:, 0], alpha, tau)
