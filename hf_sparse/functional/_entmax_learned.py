"""alpha-entmax with one alpha per row, and its gradient in alpha, by which models learn it (Correia et al. 2019).

Everything is written in ``a = alpha - 1`` and the deformed exponential ``exp_a(t) = (1 + a t) ^ (1/a)``, whose limit
at a = 0 is exp: ``p = exp_a(z - mu)``. No formula divides by a small a, so softmax (alpha = 1) is no special case and
has its finite derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..kernels import STREAM_ABOVE, Runs, entmax_weights, products_by_run, slopes_by_run, weights_by_run
from ..tracing import in_graph
from ._entmax_rows import write_jacobian_product, write_weights
from ._softmax import softmax_rows
from .function import Function, differentiated_again
from .newton import exponent_of, is_softmax
from .rows import by_chunks, is_mapped, is_readable


def _divided(numerator: Tensor, a: Tensor, limit: Tensor) -> Tensor:
    """``numerator / a``, and the limit where a is 0."""
    return torch.where(a == 0, limit, numerator / torch.where(a == 0, 1.0, a))


def _exp_a(t: Tensor, a: Tensor) -> Tensor:
    """``[1 + a t]_+ ^ (1 / a)``."""
    base = a * t
    support = (base > -1) & (t > -torch.inf)
    inside = torch.where(support, base, 0.0)
    return torch.where(support, _divided(inside.log1p(), a, torch.where(support, t, 0.0)).exp(), 0.0)


def _log(p: Tensor) -> Tensor:
    """``log p``, and 0 off the support."""
    return torch.where(p > 0, p, 1.0).log()


def _slopes(p: Tensor, a: Tensor) -> Tensor:
    """``p ^ (1 - a)``, by which a weight rises with its score alone; 0 off the support."""
    return ((1 - a) * _log(p)).exp() * (p > 0)


def _solve(x: Tensor, a: Tensor) -> Tensor:
    """p over the last axis: Newton's method on the norm, which for a = 0 finds the log-partition in one step."""
    top = x.amax(-1, keepdim=True)
    t = x - torch.where(top == -torch.inf, 0.0, top)
    stop = x.device.type == "cpu" and not in_graph()
    tolerance = 4 * torch.finfo(x.dtype).eps
    mu = torch.zeros_like(top)
    for _ in range(16):
        p = _exp_a(t - mu, a)
        mass = p.sum(-1, keepdim=True)
        slope = _slopes(p, a).sum(-1, keepdim=True)
        log_mass = torch.where(mass > 0, mass, 1.0).log()
        step = mass * _divided(-torch.expm1(-a * log_mass), a, log_mass) / torch.where(slope > 0, slope, 1.0)
        mu = mu + step.clamp(min=0)
        if stop and not bool((mass > 1 + tolerance).any()):
            break
    # Thousands of equal entries, rounded alike, may leave a mass well off one. To scale the weights to it would move
    # the largest most; a last step moves all scores alike.
    p = _exp_a(t - mu, a)
    slopes = _slopes(p, a)
    slope = slopes.sum(-1, keepdim=True)
    off = (p.sum(-1, keepdim=True) - 1) * (slope > 0)
    p = (p - slopes * (off / torch.where(slope > 0, slope, 1.0))).clamp(min=0)
    mass = p.sum(-1, keepdim=True)
    p = p / torch.where(mass > 0, mass, 1.0)
    return torch.where(top.isnan() | (top == torch.inf), torch.nan, p)


def _second_order(y: Tensor) -> Tensor:
    """``(e^y - 1 - y) / y^2``, 1/2 at y = 0.

    The first nine terms of the series where the tenth, y^9 / 11!, is below rounding; elsewhere the difference itself.
    """
    small = y.abs() < min(0.5, (math.factorial(11) / 4 * torch.finfo(y.dtype).eps) ** (1 / 9))
    series = torch.full_like(y, 1 / 3628800)
    for factorial in (362880, 40320, 5040, 720, 120, 24, 6, 2):
        series = series * torch.where(small, y, 0.0) + 1 / factorial
    large = torch.where(small, 1.0, y)
    return torch.where(small, series, (torch.expm1(large) - large) / (large * large))


def _slope_in_alpha(p: Tensor, a: Tensor) -> Tensor:
    """``dp / dalpha`` at fixed scores.

    Correia et al. give ``(p - q) / a^2 + (h - q sum h) / a`` with ``h = -p log p`` and q proportional to
    ``p^(1 - a)``. With ``psi = (e^(-a log p) - 1) / a = -log p + a psi_2``, ``phi = sum p psi = H + a phi_2`` and
    ``H = sum h`` the powers of a cancel: ``p (phi_2 - psi_2 - phi log p - H psi) / (1 + a phi)``.
    """
    log_p = _log(p)
    psi_2 = log_p * log_p * _second_order(-a * log_p)
    psi = -log_p + a * psi_2
    entropy = -(p * log_p).sum(-1, keepdim=True)
    phi, phi_2 = ((p * values).sum(-1, keepdim=True) for values in (psi, psi_2))
    return p * (phi_2 - psi_2 - phi * log_p - entropy * psi) / (1 + a * phi)


# A call of torch for a run of rows that share an alpha is worth its time from so many scores on; other rows are solved
# all together.
_WORTH_A_CALL = 1 << 14


def _runs(alpha: Tensor, x: Tensor, impl: str) -> Runs | None:
    """The runs of rows x (..., V) for an alpha (..., 1) that broadcasts over them, or None."""
    if in_graph() or x.numel() == 0 or x.device.type != "cpu":
        return None
    by_row = alpha.detach().expand(*x.shape[:-1], 1).flatten()
    alphas, lengths = torch.unique_consecutive(by_row, return_counts=True)
    worth_it = impl == "cpp" or len(alphas) * _WORTH_A_CALL <= x.numel()
    return Runs(lengths, alphas.double()) if worth_it else None


def _run_by_run(write: Callable[..., object], runs: Runs, *tensors: Tensor, width: int) -> Tensor:
    """``write(*rows, alpha, out)`` for every run; returns all that was written.

    Args:
        write: takes rows (n, V) of each tensor, a number, and where to write, (n, width).
        runs: of the rows.
        tensors: (..., V), of one shape.
        width: of the result (..., width).
    """
    written = tensors[0].new_empty(*tensors[0].shape[:-1], width)
    flat = [tensor.reshape(-1, tensor.shape[-1]).split(runs.lengths.tolist()) for tensor in (*tensors, written)]
    for alpha, *rows, out in zip(runs.alphas.tolist(), *flat):
        write(*rows, alpha, out)
    return written


def _weights_of(x: Tensor, runs: Runs, impl: str) -> Tensor:
    length = x.shape[-1]
    if impl == "cpp" and length <= STREAM_ABOVE and not is_softmax(float(runs.alphas.min())):
        return weights_by_run(x, runs)
    return _run_by_run(partial(_write_weights, impl=impl), runs, x, width=length)


def _write_weights(x: Tensor, alpha: float, out: Tensor, impl: str) -> None:
    if is_softmax(alpha):
        out.copy_(softmax_rows(x))
    elif impl == "cpp":
        entmax_weights(x, alpha, exponent_of(alpha), out)
    else:
        by_chunks(partial(write_weights, alpha=alpha), x, out=out)


def _products_of(p: Tensor, grad: Tensor, runs: Runs, impl: str) -> Tensor:
    if impl == "cpp":
        return products_by_run(p, grad, runs)
    return _run_by_run(_write_product, runs, p, grad, width=p.shape[-1])


def _write_product(p: Tensor, grad: Tensor, alpha: float, out: Tensor) -> None:
    by_chunks(partial(write_jacobian_product, alpha=alpha), p, grad, out=out)


def _slopes_of(p: Tensor, grad: Tensor, runs: Runs, impl: str) -> Tensor:
    return slopes_by_run(p, grad, runs) if impl == "cpp" else _run_by_run(_write_slopes, runs, p, grad, width=1)


def _write_slopes(p: Tensor, grad: Tensor, alpha: float, out: Tensor) -> None:
    by_chunks(partial(_write_slopes_of_chunk, a=alpha - 1), p, grad, out=out)


# From this a on, psi_2 of ``_slope_in_alpha`` is the difference that defines it: divided by a once more, what rounding
# leaves of it stays below 1e-6 of the derivative.
_PLAIN_FROM = 0.1


@torch.autocast("cpu", enabled=False)  # which would round the dot products, where the backward pass runs in it
def _write_slopes_of_chunk(p: Tensor, grad: Tensor, out: Tensor, a: float) -> None:
    """The sums of ``grad * _slope_in_alpha(p, a)`` over the last axis.

    For all but small a they follow from four sums, over log p and psi with weights p and p grad: phi_2 and its like
    are those of psi and log p divided by a. The slope sums to zero, so that grad may be taken from its mean, which
    leaves less to cancel.
    """
    grad = torch.where(p > 0, grad, 0.0)
    if a < _PLAIN_FROM:
        torch.sum(grad * _slope_in_alpha(p, p.new_tensor(a)), -1, keepdim=True, out=out)
        return
    dot = partial(torch.linalg.vecdot, dim=-1)
    log_p = p.clamp(min=torch.finfo(p.dtype).tiny).log_()
    psi, with_grad = torch.expm1(-a * log_p).div_(a), p * (grad - dot(p, grad).unsqueeze(-1))
    entropy, phi, of_log, of_psi = -dot(p, log_p), dot(p, psi), dot(with_grad, log_p), dot(with_grad, psi)
    slope = -(of_psi + of_log) / a - phi * of_log - entropy * of_psi
    out.copy_((slope / (1 + a * phi)).unsqueeze(-1))


def _product(p: Tensor, grad: Tensor, alpha: Tensor) -> Tensor:
    """The Jacobian of each row times ``grad``, by operations that can be differentiated again."""
    support = p > 0
    grad = torch.where(support, grad, 0.0)
    s = _slopes(p, alpha - 1)
    total = s.sum(-1, keepdim=True)
    return s * (grad - (s * grad).sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total))


class EntmaxPerRow(Function):
    """p over the last axis, ``EntmaxPerRow.call(x, alpha)``, alpha (..., 1) in [1, 2] broadcasting over x.

    A third argument, ``"cpp"``, names the kernel, for what ``kernels.chosen`` lets through.
    """

    @staticmethod
    def forward(x: Tensor, alpha: Tensor, impl: str = "torch") -> Tensor:
        # Here and not in the caller: under vmap the values can be read only here.
        if is_readable(alpha) and not bool(((alpha >= 1) & (alpha <= 2)).all()):
            raise ValueError(f"a tensor alpha must be in [1, 2], was in [{float(alpha.min())}, {float(alpha.max())}]")
        runs = _runs(alpha, x, impl)
        if runs is not None:
            return _weights_of(x, runs, impl)
        return _solve(x, alpha - 1)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.impl = inputs[2] if len(inputs) > 2 else "torch"
        Function.save(ctx, output, inputs[1])

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        p, alpha = ctx.saved_tensors
        # What is written has no derivative, and is no tensor of a vmap.
        runs = None if differentiated_again() or is_mapped(grad) else _runs(alpha, p, ctx.impl)
        if runs is not None:
            for_alpha = None
            if ctx.needs_input_grad[1]:
                for_alpha = _slopes_of(p, grad, runs, ctx.impl).sum_to_size(alpha.shape)
            return _products_of(p, grad, runs, ctx.impl), for_alpha, None
        for_x = _product(p, grad, alpha)
        if not ctx.needs_input_grad[1]:
            return for_x, None, None
        grad = torch.where(p > 0, grad, 0.0)
        return for_x, (grad * _slope_in_alpha(p, alpha - 1)).sum_to_size(alpha.shape), None

    @staticmethod
    def tangent(ctx, of_x: Tensor | None, of_alpha: Tensor | None, *rest: None) -> Tensor:
        p, alpha = ctx.saved_tensors
        moved = torch.zeros_like(p) if of_x is None else _product(p, of_x, alpha)
        return moved if of_alpha is None else moved + of_alpha * _slope_in_alpha(p, alpha - 1)

    @staticmethod
    def vmap(info, in_dims, x: Tensor, alpha: Tensor, impl: str = "torch") -> tuple[Tensor, int]:
        x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        if in_dims[1] is not None:
            alpha = alpha.movedim(in_dims[1], 0)
            alpha = alpha.reshape(len(alpha), *(1,) * (x.dim() - alpha.dim()), *alpha.shape[1:])
        return EntmaxPerRow.call(x, alpha, impl), 0
