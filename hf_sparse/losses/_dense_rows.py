"""Losses of rows solved whole, in torch: a few rows at a time, whose many passes stay in cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.newton import dtype_for, exponent_of, is_softmax, near_softmax, power, solve_with_powers
from ..functional.rows import accumulation_dtype, upcast
from ._alpha_relu_support import relu_loss_from_mass
from ._row_terms import differentiable_gradient, from_conjugate, weighted

# Entries of a few rows for each thread: a megabyte of them.
_FEW = 1 << 18


class _DenseRows(torch.autograd.Function):
    """The losses; ``p - y`` in the backward, whose own derivative is the map's."""

    @staticmethod
    def forward(ctx, z: Tensor, y: Tensor, alpha: float, tau: float | None) -> Tensor:
        p = torch.empty_like(z, dtype=accumulation_dtype(z), memory_format=torch.contiguous_format)
        conjugate, top = p.new_empty(len(z), dtype=torch.float64), p.new_empty(len(z), 1)
        num_rows = max(1, _FEW * torch.get_num_threads() // z.shape[1])
        for start in range(0, len(z), num_rows):
            rows = slice(start, start + num_rows)
            if tau is None:
                conjugate[rows] = _solve_entmax(z[rows], alpha, p[rows], top[rows])
            else:
                conjugate[rows] = _solve_alpha_relu(z[rows], alpha, tau, p[rows])
        ctx.alpha, ctx.tau = alpha, tau
        ctx.save_for_backward(z, y, p)
        if tau is None:
            return from_conjugate(conjugate, z, y, top, alpha).to(p.dtype)
        return relu_loss_from_mass(conjugate, z, y, alpha, tau).to(p.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, y, p = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: rebuild p with its own graph
            of_z = differentiable_gradient(z, y, grad, ctx.alpha, ctx.tau)
        elif y.is_floating_point():
            of_z = weighted(p - y, grad)
        else:  # the residual of the class alone, and not a copy of p, for p is needed if the graph is kept
            residual = p.gather(-1, y[:, None]) - 1
            of_z = weighted(p, grad).scatter_(-1, y[:, None], weighted(residual, grad))
        return of_z.to(z.dtype), None, None, None


def _solve_entmax(z: Tensor, alpha: float, p: Tensor, top: Tensor) -> Tensor:
    """``Omega*(z) - max z`` (N,) of a few rows; writes their weights to p and their maxima to top."""
    x = upcast(z)
    torch.amax(x, -1, keepdim=True, out=top)
    x = x - top.masked_fill_(top == -torch.inf, 0.0)
    if is_softmax(alpha):
        return _solve_softmax(x, p)
    x.mul_(alpha - 1)
    # (alpha - 1) Omega*(z) is the least value over tau of (1 - 1/alpha) (sum u^(alpha / (alpha - 1)) - 1) + 1 + tau: a
    # rounding error of tau enters only squared. Near softmax, u and -tau are too close to 1 to be written so.
    if dtype_for(alpha, x) != x.dtype:
        weights, below, risen = near_softmax(x, alpha)
        mass = weights.sum(-1, keepdim=True)
        energy = below.mul_(weights).sum(-1) + (mass[:, 0] - 1)
        conjugate = energy / alpha + risen[:, 0] / (alpha - 1)
    else:
        exponent = exponent_of(alpha)
        u, weights = solve_with_powers(x.add_(1).clamp_(min=0), exponent)
        mass = weights.sum(-1, keepdim=True)
        conjugate = ((1 - 1 / alpha) * ((weights * u).sum(-1) - 1) + (1 - u.amax(-1))) / (alpha - 1)
    torch.div(weights, torch.where(mass == 0, 1.0, mass), out=p)
    return conjugate.masked_fill_(mass[:, 0] == 0, 0.0)


def _solve_softmax(x: Tensor, p: Tensor) -> Tensor:
    mass = torch.exp(x, out=p).sum(-1, keepdim=True)
    p.div_(torch.where(mass == 0, 1.0, mass))
    return mass[:, 0].log().masked_fill_(mass[:, 0] == 0, 0.0)


def _solve_alpha_relu(z: Tensor, alpha: float, tau: float, p: Tensor) -> Tensor:
    """``sum u^(alpha / (alpha - 1))`` (N,) of a few rows; writes their weights to p."""
    u = z.to(dtype_for(alpha, z), copy=True).mul_(alpha - 1).sub_(tau).clamp_(min=0)
    weights = power(u, exponent_of(alpha))
    p.copy_(weights)
    return u.mul_(weights).sum(-1)


def dense_rows_loss(z: Tensor, y: Tensor, alpha: float, tau: float | None = None) -> Tensor:
    """The entmax or alpha-ReLU losses (N,) of rows on a CPU: short ones, or long ones that are mostly support.

    Args:
        z: scores (N, V), any floating-point dtype; ``-inf`` masks an entry.
        y: classes (N,), int64, or distributions (N, V).
        alpha: of the map; in [1, 2] for entmax.
        tau: the threshold of alpha-ReLU; None for entmax.

    Returns:
        float32, or float64 for float64 scores.

    Cost: one read of z, one write of the weights, which are kept, and one of the gradient.
    """
    return _DenseRows.apply(z, y, alpha, tau)
