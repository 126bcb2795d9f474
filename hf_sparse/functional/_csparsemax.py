"""csparsemax: sparsemax under upper bounds on the weights, for attention with fertility."""

from __future__ import annotations

import torch
from torch import Tensor

from ._sparsemax import sparsemax
from .bounds import CREDIT, ROUNDS_BEFORE_SORTING, map_bounded_rows, settled_or_sorted
from .registry import SparseMap, UpperBounds, register
from .rows import check_scores, upcast


def csparsemax(z: Tensor, u: Tensor, dim: int = -1) -> Tensor:
    """``p_i = clip(z_i - tau, 0, u_i)``: the nearest distribution to z in Euclidean distance with ``p <= u``.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        u: upper bounds, broadcastable to ``z``; non-negative (-1e-6 counts as 0), ``inf`` for none. The bounds of the
            unmasked entries must sum to at least 1 (less 1e-4).
        dim: the axis to map.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``; differentiable in z and u. A fully masked row gives
        zeros. Where every entry is at 0 or at its bound, no gradient flows.

    Raises:
        TypeError, IndexError: see ``entmax``.
        ValueError: negative or infeasible bounds, or an empty axis.

    Source: Malaviya et al. 2018, Eq. 6 and Propositions 1 and 2.
    Cost: a few passes; a sort of twice the row's length where these do not converge, and off the CPU.

    >>> csparsemax(torch.tensor([1.2, 0.8, -0.2]), torch.tensor([0.5, 1.0, 1.0]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    return map_bounded_rows(_csparsemax_rows, z, u, dim)


def csparsemax_threshold(z: Tensor, u: Tensor, dim: int = -1) -> Tensor:
    """The ``tau`` in ``csparsemax(z, u) = clip(z - tau, 0, u)``.

    Args:
        z: scores, as in ``csparsemax``.
        u: upper bounds, as in ``csparsemax``.
        dim: the axis mapped.

    Returns:
        float32 or float64, shape of ``z`` with size 1 along ``dim``, differentiable. Where every entry is at 0 or at
        its bound, a whole interval of thresholds gives the same weights: its upper end. ``inf`` for a fully masked
        row.

    Raises:
        TypeError, IndexError, ValueError: see ``csparsemax``.

    Source: Malaviya et al. 2018, Proposition 1.
    Cost: that of ``csparsemax`` and four passes.

    >>> csparsemax_threshold(torch.tensor([1.2, 0.8, -0.2]), torch.tensor([0.5, 0.6, 1.0]))
    tensor([0.3000])
    """
    check_scores(z, dim)
    x = upcast(z)
    p = csparsemax(x, u, dim)
    bound = u.to(x.dtype).expand_as(x)
    inside = (p > 0) & (p < bound)
    between = torch.where(inside, x - p, 0.0).sum(dim, keepdim=True) / inside.sum(dim, keepdim=True).clamp(min=1)
    upper = torch.where(p > 0, x - p, torch.inf).amin(dim, keepdim=True)
    return torch.where(inside.any(dim, keepdim=True), between, upper)


def _csparsemax_rows(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The weights, and a mask of those at their bound.

    In float64: bounds may put the threshold far below the top of a row, where float32 has lost the digits of the mass.
    """
    dtype = x.dtype
    if x.device.type != "mps":  # which has no float64
        x, u = x.double(), u.double()
    masked = x == -torch.inf
    top = x.detach().amax(-1, keepdim=True)
    x = (x - torch.where(top == -torch.inf, 0.0, top)).masked_fill(masked, 0.0)
    # No weight exceeds one: larger bounds are lowered to one, where they count as not binding.
    binding = (u <= 1) & ~masked
    u = u.masked_fill(masked, 0.0).clamp(max=1)
    tau = _threshold(x.detach(), u.detach())
    # Given the active sets, tau is a mean over them, and autograd computes the gradients from here.
    inside, full = _active(x, u, tau)
    u = torch.where(inside.any(-1, keepdim=True), u, u.detach())
    p = torch.where(inside, x - _mean_threshold(x, u, inside, full, tau), torch.where(full, u, 0.0)).clamp(min=0)
    p = p.masked_fill(masked, 0.0)
    return torch.where(top.isnan() | (top == torch.inf), torch.nan, p).to(dtype), full & binding


def _active(x: Tensor, u: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of the entries strictly between their bounds, and of those at the upper one."""
    full = x - tau >= u
    return (x > tau) & ~full, full


def _mean_threshold(x: Tensor, u: Tensor, inside: Tensor, full: Tensor, tau: Tensor) -> Tensor:
    """The threshold that gives these sets a mass of one; tau itself where no entry is inside."""
    count = inside.sum(-1, keepdim=True)
    mass = torch.where(inside, x, 0.0).sum(-1, keepdim=True) + torch.where(full, u, 0.0).sum(-1, keepdim=True)
    return torch.where(count > 0, (mass - 1) / count.clamp(min=1), tau)


def _newton_threshold(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """tau with ``sum clip(x - tau, 0, u) = 1`` by Newton's method, from a threshold at which the mass is at least one.

    The mass is neither convex nor concave in tau: a step that leaves the bracket is replaced by its midpoint.
    """
    eps, zero = 4 * torch.finfo(x.dtype).eps, x.new_zeros(())
    tau = x.amax(-1, keepdim=True) - 1
    low, high = torch.full_like(tau, -torch.inf), torch.full_like(tau, torch.inf)
    for _ in range(ROUNDS_BEFORE_SORTING):
        p = torch.clamp(x - tau, zero, u)
        count = ((p > 0) & (p < u)).sum(-1, keepdim=True)
        excess = p.sum(-1, keepdim=True) - 1
        heavy = excess >= 0
        low, high = torch.where(heavy, tau, low), torch.where(heavy, high, tau)
        step = excess / count.clamp_(min=1)
        tau = tau + step
        settled = step.abs() <= eps * (1 + tau.abs())
        if bool(settled.all()):
            break
        outside = ~settled & ((tau <= low) | (tau >= high))
        tau = torch.where(outside, (low + high) / 2, tau)
    return tau, settled


def _sorted_threshold(x: Tensor, u: Tensor) -> Tensor:
    """The same by sorting: the mass is piecewise linear in tau, with breakpoints ``x - u`` and ``x``."""
    falls = torch.ones_like(x)
    points, order = torch.cat([x - u, x], -1).sort(-1)
    falling = torch.cat([falls, -falls], -1).gather(-1, order).cumsum(-1)
    lost = (falling[..., :-1] * points.diff(dim=-1)).cumsum(-1)
    mass = u.sum(-1, keepdim=True) - torch.cat([torch.zeros_like(points[..., :1]), lost], -1)
    last = ((mass >= 1).sum(-1, keepdim=True) - 1).clamp(min=0)
    excess, count = (mass.gather(-1, last) - 1).clamp(min=0), falling.gather(-1, last)
    tau = points.gather(-1, last) + excess / count.clamp(min=1)
    for _ in range(2):
        # A Newton step on the exact sets removes the rounding of the sums behind the threshold, and leaves the flat
        # stretches of the mass, at whose ends rounding may have put an entry on the wrong side.
        tau = _mean_threshold(x, u, *_active(x, u, tau), tau)
    return tau


_threshold = settled_or_sorted(_newton_threshold, _sorted_threshold)


register(
    SparseMap(
        "csparsemax",
        csparsemax,
        regularizer=None,
        settings=CREDIT,
        bounds=UpperBounds(_csparsemax_rows, slope=torch.ones_like, unbounded=sparsemax),
    )
)
