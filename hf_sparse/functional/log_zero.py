"""Log-probabilities of sparse distributions: a finite floor stands for the logarithm of zero, and tells them apart.

A logarithm of minus infinity turns into NaN in the first product with zero and in every gradient. The floor is finite
in every dtype, its exponential is exactly zero, and ``log_softmax`` gives it back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import chosen, log_weights_
from .rows import by_chunks, is_transformed, row_by_row, upcast, writes_rows

# The highest floor; they go down to twice this value. The exponential underflows to 0 from -104 on.
LOG_ZERO = -1e4
_SUM_TO_ONE = 1e-3


def log_or_floor_(p: Tensor, z: Tensor) -> Tensor:
    """``log p``; where p is zero ``LOG_ZERO + max(z - max z, LOG_ZERO)``, so that the order of scores is not lost.

    Differentiable, also on the floor: its gradient raises z there against the largest score of the row.

    Args:
        p: (..., V) distributions, float32 or float64; may be overwritten where nothing differentiates them.
        z: the scores (..., V) they were made from, of the same dtype.
    """
    by_kernel = row_by_row(p) and not is_transformed(p, z) and chosen("auto", p) == "cpp"
    if writes_rows(p, z):
        return log_weights_(p.contiguous(), z, LOG_ZERO) if by_kernel else by_chunks(_write_log_or_floor, p, z)
    floor = (z - z.amax(-1, keepdim=True)).clamp_(min=LOG_ZERO).add_(LOG_ZERO)
    log_p = torch.where(p > 0, p.clamp(min=torch.finfo(p.dtype).tiny).log_(), floor)
    if by_kernel:  # the same digits with a gradient as without: a ratio of probabilities is one, not close to it
        of_kernel = log_weights_(p.detach().clone(memory_format=torch.contiguous_format), z.detach(), LOG_ZERO)
        log_p = log_p + (of_kernel - log_p.detach())
    return log_p


def _write_log_or_floor(p: Tensor, z: Tensor, out: Tensor) -> None:
    """``log_or_floor_`` of a chunk of rows, without torch.where, which takes a scalar loop on a CPU."""
    torch.sub(z, z.amax(-1, keepdim=True), out=out).clamp_(min=LOG_ZERO).add_(LOG_ZERO)
    log_p = p.clamp(min=torch.finfo(p.dtype).tiny).log_()
    log_p += p.sign().sub_(1).mul_(-3 * LOG_ZERO)  # where p is zero, below any floor
    torch.maximum(log_p, out, out=out)


def on_floor(scores: Tensor) -> Tensor:
    """The entries of ``scores`` that stand for the logarithm of zero, as a mask of their shape."""
    return (scores < LOG_ZERO / 2) & (scores > 2.5 * LOG_ZERO)


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
