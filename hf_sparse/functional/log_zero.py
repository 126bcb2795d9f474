"""Log-probabilities of sparse distributions: a finite floor stands for the logarithm of zero, and tells them apart.

A logarithm of minus infinity turns into NaN in the first product with zero and in every gradient. The floor is finite
in every dtype, its exponential is exactly zero, and ``log_softmax`` gives it back.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..kernels import chosen, log_weights_
from .function import Function, differentiated_again
from .rows import by_chunks, is_transformed, row_by_row, upcast, writes_rows

# The highest floor; they go down to twice this value. The exponential underflows to 0 from -104 on.
LOG_ZERO = -1e4
_SUM_TO_ONE = 1e-3
_LEAST = math.log(math.ulp(0.0))  # of the smallest number that float64 has


def log_or_floor_(p: Tensor, z: Tensor) -> Tensor:
    """``log p``; where p is zero ``LOG_ZERO + max(z - max z, LOG_ZERO)``, so that the order of scores is not lost.

    Differentiable, also on the floor: its gradient raises z there against the largest score of the row.

    Args:
        p: (..., V) distributions, float32 or float64; may be overwritten where nothing differentiates them.
        z: the scores (..., V) they were made from, of the same dtype.
    """
    if not row_by_row(p, z) or is_transformed(p, z):
        return _log_or_floor(p, z)
    return _written(p, z) if writes_rows(p, z) else _LogOrFloor.apply(p, z)


def _log_or_floor(p: Tensor, z: Tensor) -> Tensor:
    """``log_or_floor_`` by operations that can be differentiated again."""
    floor = (z - z.amax(-1, keepdim=True)).clamp(min=LOG_ZERO).add(LOG_ZERO)
    return torch.where(p > 0, p.clamp(min=torch.finfo(p.dtype).tiny).log(), floor)


def _written(p: Tensor, z: Tensor) -> Tensor:
    """``log_or_floor_`` by the kernel, which overwrites p, or by chunks."""
    if chosen("auto", p) == "cpp":
        return log_weights_(p.contiguous(), z, LOG_ZERO)
    return by_chunks(_write_log_or_floor, p, z)


# Below, torch.where is left out: on a CPU it takes a scalar loop, thirty times as long as a product.
def _write_log_or_floor(p: Tensor, z: Tensor, out: Tensor) -> None:
    torch.sub(z, z.amax(-1, keepdim=True), out=out).clamp_(min=LOG_ZERO).add_(LOG_ZERO)
    log_p = p.clamp(min=torch.finfo(p.dtype).tiny).log_()
    log_p += p.sign().sub_(1).mul_(-3 * LOG_ZERO)  # where p is zero, below any floor
    torch.maximum(log_p, out, out=out)


class _LogOrFloor(Function):
    @staticmethod
    def forward(p: Tensor, z: Tensor) -> Tensor:
        return _written(p.clone(memory_format=torch.contiguous_format), z)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, z = ctx.saved_tensors
        if differentiated_again() or not row_by_row(p, z, grad):
            with torch.enable_grad():
                inputs = p.view_as(p), z.view_as(z)  # p is made from z: its part of the gradient is not z's own
                wanted = [x for x, needed in zip(inputs, ctx.needs_input_grad) if needed]
                found = iter(torch.autograd.grad(_log_or_floor(*inputs), wanted, grad, create_graph=True))
                return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)
        of_z = torch.empty_like(z, memory_format=torch.contiguous_format)
        return by_chunks(_write_gradients, p, z, grad, of_z), of_z


def _write_gradients(p: Tensor, z: Tensor, grad: Tensor, of_z: Tensor, of_p: Tensor) -> None:
    """``g / p`` on the support; off it g for z, where its floor is not the lowest, less their sum at the largest z."""
    support = p.sign()
    below = z - z.amax(-1, keepdim=True).clamp_(min=torch.finfo(z.dtype).min)
    torch.addcmul(grad, grad, support, value=-1, out=of_z)
    if not bool((below.amin(-1) > LOG_ZERO).all()):
        of_z.mul_((below - LOG_ZERO).clamp_(min=0).sign_())
    smaller = below.sign_()  # -1, and 0 at the largest
    number = smaller.sum(-1, keepdim=True).add_(z.shape[-1]).clamp_(min=1)  # 0 where all is masked
    total = of_z.sum(-1, keepdim=True).div_(number)
    of_z.sub_(total).addcmul_(smaller, total, value=-1)
    torch.mul(grad, support.div_(p.clamp(min=torch.finfo(p.dtype).tiny)), out=of_p)


def on_floor(scores: Tensor) -> Tensor:
    """The entries of ``scores`` that stand for the logarithm of zero, as a mask of their shape."""
    return (scores < LOG_ZERO / 2) & (scores > 2.5 * LOG_ZERO)


def without_floor(scores: Tensor) -> Tensor:
    """Log-probabilities in float64, ``-inf`` for zero: sums of them tell the impossible from the very unlikely."""
    return scores.double().masked_fill(scores < _LEAST, -torch.inf)


def sum_to_one(scores: Tensor) -> Tensor:
    """Whether rows of ``scores`` (..., V) hold logarithms of distributions: (...), bool.

    Half precision cannot hold them so well that their exponentials sum to one; a row is then told by its floor.
    """
    return with_zeros(scores) if _is_half(scores) else _total_is_one(scores)


def with_zeros(scores: Tensor) -> Tensor:
    """Whether rows of ``scores`` (..., V) hold logarithms of distributions that have zeros: (...), bool."""
    return _total_is_one(scores) & on_floor(scores).any(-1)


def _total_is_one(scores: Tensor) -> Tensor:
    return (upcast(scores).exp().sum(-1) - 1).abs() < (0.1 if _is_half(scores) else _SUM_TO_ONE)


def _is_half(scores: Tensor) -> bool:
    return torch.finfo(scores.dtype).eps > _SUM_TO_ONE / 10
