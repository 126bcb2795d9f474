"""Losses of long rows that are mostly support, in torch: a few rows at a time, whose many passes stay in cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional import alpha_relu, entmax
from ..functional.negentropy import tsallis_negentropy
from ..functional.newton import dtype_for, exponent_of, near_softmax, power, solve_crowded
from ..functional.rows import accumulation_dtype, upcast
from ._alpha_relu_support import relu_loss
from ._targets import score_gradient

# Entries of a few rows for each thread: a megabyte of them.
_FEW = 1 << 18


class _DenseRows(torch.autograd.Function):
    """The losses; ``p - e_y`` in the backward, whose own derivative is the map's."""

    @staticmethod
    def forward(ctx, z: Tensor, y: Tensor, alpha: float, tau: float | None) -> Tensor:
        p = torch.empty_like(z, dtype=accumulation_dtype(z), memory_format=torch.contiguous_format)
        loss = p.new_empty(len(z))
        num_rows = max(1, _FEW * torch.get_num_threads() // z.shape[1])
        for start in range(0, len(z), num_rows):
            rows = slice(start, start + num_rows)
            if tau is None:
                loss[rows] = _solve_entmax(z[rows], y[rows], alpha, p[rows])
            else:
                loss[rows] = _solve_alpha_relu(z[rows], y[rows], alpha, tau, p[rows])
        ctx.alpha, ctx.tau = alpha, tau
        ctx.save_for_backward(z, y, p)
        return loss

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, y, p = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: rebuild p with its own graph
            x = upcast(z)
            p = entmax(x, ctx.alpha) if ctx.tau is None else alpha_relu(x, ctx.alpha, ctx.tau)
            return score_gradient(p, y, grad).to(z.dtype), None, None, None
        factor = grad[:, None]
        of_z = (p * factor).to(z.dtype)
        of_z.scatter_(-1, y[:, None], ((p.gather(-1, y[:, None]) - 1) * factor).to(z.dtype))
        unwanted = factor == 0  # such rows may hold NaN
        return of_z.masked_fill_(unwanted, 0.0) if bool(unwanted.any()) else of_z, None, None, None


def _solve_entmax(z: Tensor, y: Tensor, alpha: float, p: Tensor) -> Tensor:
    """The entmax losses of a few rows; writes their weights to p."""
    x, exponent = upcast(z), exponent_of(alpha)
    top = x.amax(-1, keepdim=True)
    top = top.masked_fill_(top == -torch.inf, 0.0)
    x = x - top
    gold = x.gather(-1, y[:, None])[:, 0]
    if dtype_for(alpha, x) != x.dtype:
        weights = near_softmax(x * (alpha - 1), alpha)
        mass = weights.sum(-1, keepdim=True)
        torch.div(weights, torch.where(mass == 0, 1.0, mass), out=p)
        return (p * x.clamp_(min=-1 / (alpha - 1))).sum(-1) - tsallis_negentropy(p, alpha) - gold
    u = solve_crowded(x.mul_(alpha - 1).add_(1).clamp_(min=0), exponent)
    weights = power(u, exponent)
    mass = weights.sum(-1, keepdim=True)
    torch.div(weights, torch.where(mass == 0, 1.0, mass), out=p)
    # (alpha - 1) Omega*(z) is the least value over tau of this: a rounding error of tau enters only squared.
    conjugate = ((1 - 1 / alpha) * ((weights * u).sum(-1) - 1) + (1 - u.amax(-1))) / (alpha - 1)
    return conjugate.masked_fill_(mass[:, 0] == 0, 0.0) - gold


def _solve_alpha_relu(z: Tensor, y: Tensor, alpha: float, tau: float, p: Tensor) -> Tensor:
    """The alpha-ReLU losses of a few rows; writes their weights to p."""
    u = z.to(dtype_for(alpha, z), copy=True).mul_(alpha - 1).sub_(tau).clamp_(min=0)
    weights = power(u, exponent_of(alpha))
    p.copy_(weights)
    return relu_loss(u.mul_(weights).sum(-1), z.gather(-1, y[:, None])[:, 0], alpha, tau)


def dense_rows_loss(z: Tensor, y: Tensor, alpha: float, tau: float | None = None) -> Tensor:
    """The entmax or alpha-ReLU losses (N,) of rows of which most entries have weight, on a CPU.

    Args:
        z: scores (N, V), any floating-point dtype; ``-inf`` masks an entry.
        y: classes (N,), int64.
        alpha: of the map; at most 2 for entmax.
        tau: the threshold of alpha-ReLU; None for entmax.

    Returns:
        float32, or float64 for float64 scores.

    Cost: one read of z, one write of the weights, which are kept, and one of the gradient.
    """
    return _DenseRows.apply(z, y, alpha, tau)
