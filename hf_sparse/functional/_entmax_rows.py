"""alpha-entmax of the last axis for one alpha: the weights, their Jacobian, and the Jacobian's own derivative."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..kernels import entmax_weights, jacobian_product, triton_jacobian_product, triton_weights
from ._steep import steep_weights
from .function import Function, batched, differentiated_again
from .newton import dtype_for, exponent_of, near_softmax, power, solve, solve_, solve_with_powers
from .rows import by_chunks, is_transformed, row_by_row, upcast


def write_weights(x: Tensor, out: Tensor, alpha: float) -> None:
    """p of a chunk of rows (N, V); zeros for a fully masked row."""
    exponent = exponent_of(alpha)
    if alpha > 2:
        out.copy_(_weights(x.double(), alpha))
        return
    top = x.amax(-1, keepdim=True)
    u = torch.sub(x, top.masked_fill_(top == -torch.inf, 0.0), out=out)
    if dtype_for(alpha, x) != x.dtype:
        p = near_softmax(u.mul_(alpha - 1), alpha).weights
        torch.div(p, _mass(p), out=out)
        return
    _, p = solve_with_powers(torch.add(top.new_ones(()), u, alpha=alpha - 1, out=u).clamp_(min=0), exponent)
    torch.div(p, _mass(p), out=out)


def _mass(p: Tensor) -> Tensor:
    """The sum of p, which rounding leaves a few parts in a million from one; 1 for a row without mass."""
    mass = p.sum(-1, keepdim=True)
    return torch.where(mass == 0, 1.0, mass)


def _weights(x: Tensor, alpha: float) -> Tensor:
    """p over the last axis, by out-of-place operations, a fixed number of them off the CPU."""
    if alpha > 2:
        return steep_weights(x, alpha)
    exponent = exponent_of(alpha)
    top = x.amax(-1, keepdim=True)
    u = ((x - top.masked_fill(top == -torch.inf, 0.0)) * (alpha - 1) + 1).clamp(min=0)
    u = solve_(u, exponent) if row_by_row(u) else solve(u, exponent)
    p = power(u, exponent)
    return p / _mass(p)


def support_weights(p: Tensor, alpha: float) -> Tensor:
    """``s = p^(2 - alpha)`` on the support and 0 elsewhere; differentiable there, for any alpha."""
    if alpha == 2:
        return p.sign()
    differentiated = p.requires_grad and torch.is_grad_enabled()  # what backward saved requires a gradient, too
    if alpha < 2 and not differentiated and not is_transformed(p):
        return power(p, 2 - alpha)
    support = p > 0
    return torch.where(support, torch.where(support, p, 1.0).pow(2 - alpha), 0.0)


def _mean(s: Tensor, values: Tensor) -> Tensor:
    """The mean of the values weighted by s over the last axis; 0 where all weights are 0."""
    total = s.sum(-1, keepdim=True)
    return (s * values).sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total)


def write_jacobian_product(p: Tensor, grad: Tensor, out: Tensor, alpha: float) -> None:
    """``J g`` of a chunk of rows p and g (N, V); see ``JacobianProduct``."""
    if alpha > 2:
        out.copy_(_steep_jacobian_product(p, grad, alpha))
        return
    s = support_weights(p, alpha)
    torch.mul(s, grad, out=out)
    total = s.sum(-1, keepdim=True)
    mean = out.sum(-1, keepdim=True).div_(total.masked_fill_(total == 0, 1.0))
    if bool(mean.isfinite().all()):
        out.addcmul_(s, mean, value=-1)
    else:
        out.copy_(_jacobian_product(p, grad, alpha))


def _steep_jacobian_product(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """``J g`` for alpha above 2, where ``s = p^(2 - alpha)`` is largest at the smallest weight, by any factor.

    The gradient there is the mean of g but for rounding, which s would multiply. Measured from that entry's own g
    nothing cancels, and its product is what the others leave of zero.
    """
    log_s = (2 - alpha) * torch.where(p > 0, p.double(), 1.0).log()
    log_s = torch.where(p > 0, log_s, -torch.inf)
    steepest = log_s.argmax(-1, keepdim=True)
    highest = log_s.gather(-1, steepest)
    highest = highest.masked_fill(highest == -torch.inf, 0.0)
    g = torch.where(p > 0, grad.double(), 0.0)
    g = g - g.gather(-1, steepest)
    mean = _mean((log_s - highest).exp(), g)
    product = torch.where(p > 0, log_s.exp() * (g - mean), 0.0).scatter(-1, steepest, 0.0)
    return product.scatter(-1, steepest, -product.sum(-1, keepdim=True)).to(grad.dtype)


def _jacobian_product(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    if alpha > 2:
        return _steep_jacobian_product(p, grad, alpha)
    s = support_weights(p, alpha)
    # Off the support the upstream gradient may be anything, even infinite (of log p): it must not enter the mean.
    grad = torch.where(p > 0, grad, 0.0)
    return s * (grad - _mean(s, grad))


def _slope_of_support_weights(p: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """s, its derivative by p on the support, ``(2 - alpha) p^(1 - alpha)``, and the support."""
    q, support = upcast(p), p > 0
    return support_weights(q, alpha), (2 - alpha) * torch.where(support, q, 1.0).pow(1 - alpha), support


class JacobianProduct(Function):
    """``J g = s (g - mean_s g)`` with ``J = Diag(s) - s s^T / sum s``: symmetric, and linear in g."""

    @staticmethod
    def forward(p: Tensor, grad: Tensor, alpha: float, impl: str) -> Tensor:
        if impl == "triton":
            return triton_jacobian_product(p, grad, alpha)
        if impl == "cpp" and row_by_row(p, grad):
            return jacobian_product(p, grad, alpha)
        x, g = upcast(p), upcast(grad)
        if row_by_row(p, grad):
            return by_chunks(partial(write_jacobian_product, alpha=alpha), x, g).to(p.dtype)
        return _jacobian_product(x, g, alpha).to(p.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        p, grad, ctx.alpha, ctx.impl = inputs
        Function.save(ctx, p, grad)

    @staticmethod
    def backward(ctx, other: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        p, grad = ctx.saved_tensors
        for_p = None
        if ctx.needs_input_grad[0]:
            # The derivative of s (g - mean_s g) contracted with v is (g - mean_s g) (v - mean_s v) ds. All of it can
            # be differentiated again.
            s, slope, support = _slope_of_support_weights(p, ctx.alpha)
            g, v = (torch.where(support, upcast(values), 0.0) for values in (grad, other))
            for_p = torch.where(support, (g - _mean(s, g)) * (v - _mean(s, v)) * slope, 0.0).to(p.dtype)
        return for_p, JacobianProduct.call(p, other, ctx.alpha, ctx.impl), None, None

    @staticmethod
    def tangent(ctx, of_p: Tensor | None, of_grad: Tensor | None, *rest: None) -> Tensor:
        p, grad = ctx.saved_tensors
        product = torch.zeros_like(p)
        if of_grad is not None:
            product = JacobianProduct.call(p, of_grad, ctx.alpha, "torch")
        if of_p is not None:
            s, slope, support = _slope_of_support_weights(p, ctx.alpha)
            g = torch.where(support, upcast(grad), 0.0)
            moved = torch.where(support, (g - _mean(s, g)) * slope * of_p, 0.0)  # ds (g - mean_s g)
            total = s.sum(-1, keepdim=True)
            share = s / torch.where(total == 0, 1.0, total)
            product = product + (moved - share * moved.sum(-1, keepdim=True)).to(p.dtype)
        return product

    @staticmethod
    def vmap(info, in_dims, p: Tensor, grad: Tensor, alpha: float, impl: str) -> tuple[Tensor, int]:
        p, grad = batched(info.batch_size, in_dims, (p, grad))
        return JacobianProduct.call(p, grad, alpha, impl), 0


class EntmaxRows(Function):
    """p over the last axis, ``EntmaxRows.call(x, alpha, "torch")``, for float32 and float64 x and alpha > 1.

    The third argument may name a kernel, ``"cpp"`` or ``"triton"``, for what ``kernels.chosen`` lets through. Kernels
    also take half precision, and return p in it.
    """

    @staticmethod
    def forward(x: Tensor, alpha: float, impl: str) -> Tensor:
        if impl == "triton":
            return triton_weights(x, alpha, exponent_of(alpha))
        if impl == "cpp" and row_by_row(x):
            return entmax_weights(x, alpha, exponent_of(alpha))
        if row_by_row(x):
            return by_chunks(partial(write_weights, alpha=alpha), x)
        return _weights(x.to(dtype_for(alpha, x)), alpha).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, ctx.alpha, ctx.impl = inputs
        Function.save(ctx, output)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        (p,) = ctx.saved_tensors
        product_of = JacobianProduct.call if differentiated_again() else JacobianProduct.forward
        return product_of(p, grad, ctx.alpha, ctx.impl), None, None

    @staticmethod
    def tangent(ctx, of_x: Tensor, *rest: None) -> Tensor:
        (p,) = ctx.saved_tensors
        return JacobianProduct.call(p, of_x, ctx.alpha, "torch")  # J is symmetric

    @staticmethod
    def vmap(info, in_dims, x: Tensor, alpha: float, impl: str) -> tuple[Tensor, int]:
        return EntmaxRows.call(x.movedim(in_dims[0], 0), alpha, impl), 0
