"""The functions of the C++ kernel on tensors. No gradient flows through them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._library import library
from ._limits import DTYPES

# Rows up to this length are solved whole, in cache; longer ones on the candidates that one streaming read finds.
STREAM_ABOVE = 4096
# The largest part of a row that is returned as a list: one in sixteen. Other rows are faster whole.
_LARGEST_PART = 16


class Supports(NamedTuple):
    """The supports of rows (N, V), without their dense weights.

    Attributes:
        columns: (N, C) int64, ascending; 0 where a row has fewer than C.
        p: (N, C) the weights there, summing to one; 0 where a row has fewer, NaN where ``top`` is NaN or ``inf``.
        top: (N, 1) the row's maximum; ``-inf`` for a fully masked row, which has no weights.
        conjugate: (N,) ``Omega*(z) - max z``, 0 for a fully masked row.
        crowded: (N,) bool, rows whose support is too large a part of the row to be listed: they have no columns here.
        solution: (N, 3) float64 of the crowded rows, base, tau and mass, from which ``write_crowded`` writes their
            weights ``[(alpha - 1) (z - base) - tau]_+ ^ (1 / (alpha - 1)) / mass``; None where they are to be solved.
    """

    columns: Tensor
    p: Tensor
    top: Tensor
    conjugate: Tensor
    crowded: Tensor
    solution: Tensor | None = None


def entmax_weights(z: Tensor, alpha: float, exponent: float, out: Tensor | None = None) -> Tensor:
    """entmax over the last axis, shape and dtype of z.

    Args:
        z: (..., V) float32, bfloat16 or float16; ``-inf`` masks an entry.
        alpha: in (1, 2].
        exponent: ``1 / (alpha - 1)``.
        out: where to write it, contiguous; it may not overlap z.

    Cost: a read, a write, and for rows above 4096 entries work in proportion to the support.
    """
    z = z.contiguous()
    length = z.shape[-1]
    num_rows, threads = z.numel() // max(length, 1), torch.get_num_threads()
    p, kind = torch.empty_like(z) if out is None else out, DTYPES.index(z.dtype)
    write = library().hf_sparse_map if length > STREAM_ABOVE else library().hf_sparse_weights
    write(z.data_ptr(), p.data_ptr(), kind, num_rows, length, alpha, exponent, threads)
    return p


def jacobian_product(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """``J g = s (g - mean_s g)``, ``s = p^(2 - alpha)`` on the support; p and g (..., V) in any of ``DTYPES``."""
    p, grad = p.detach().contiguous(), grad.detach().contiguous()
    out, length = torch.empty_like(p), p.shape[-1]
    library().hf_sparse_product(
        p.data_ptr(), grad.data_ptr(), out.data_ptr(), DTYPES.index(p.dtype), p.numel() // length, length, alpha,
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def log_weights_(p: Tensor, z: Tensor, floor: float) -> Tensor:
    """``log p`` in the place of p, and ``floor + max(z - max z, floor)`` where p is zero.

    Args:
        p: weights (..., V), float32, contiguous.
        z: their scores, of the same shape, float32; a row without a finite maximum gives NaN.
        floor: below the logarithm of any weight.

    Cost: two reads of z, a read and a write of p.
    """
    z = z.contiguous()
    length = p.shape[-1]
    library().hf_sparse_write_logarithms(
        z.data_ptr(), p.data_ptr(), p.numel() // max(length, 1), length, floor, torch.get_num_threads()
    )
    return p


class Runs(NamedTuple):
    """Runs of rows that share an alpha.

    Attributes:
        lengths: (R,) int64, rows of each.
        alphas: (R,) float64.
    """

    lengths: Tensor
    alphas: Tensor


def weights_by_run(z: Tensor, runs: Runs) -> Tensor:
    """entmax over the last axis of z (..., V) float32, each run of rows with its alpha in (1, 2].

    Cost: one call of the kernel for all runs.
    """
    z = z.contiguous()
    p, exponents = torch.empty_like(z), 1 / (runs.alphas - 1)
    library().hf_sparse_weights_by_run(
        z.data_ptr(), p.data_ptr(), *_of(runs), z.shape[-1], runs.alphas.data_ptr(), exponents.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return p


def products_by_run(p: Tensor, grad: Tensor, runs: Runs) -> Tensor:
    """``jacobian_product`` of rows p and g (..., V) float32, each run of rows with its alpha in [1, 2]."""
    p, grad = p.detach().contiguous(), grad.detach().contiguous()
    out = torch.empty_like(p)
    library().hf_sparse_product_by_run(
        p.data_ptr(), grad.data_ptr(), out.data_ptr(), *_of(runs), p.shape[-1], runs.alphas.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def slopes_by_run(p: Tensor, grad: Tensor, runs: Runs) -> Tensor:
    """``sum_i g_i dp_i / dalpha`` at fixed scores (..., 1), for p and g (..., V) float32 and runs of alpha in [1, 2].

    Cost: one read of both, a logarithm and an exponential for each entry of the support.
    """
    p, grad = p.detach().contiguous(), grad.detach().contiguous()
    out = p.new_empty(*p.shape[:-1], 1)
    library().hf_sparse_slopes_by_run(
        p.data_ptr(), grad.data_ptr(), out.data_ptr(), *_of(runs), p.shape[-1], runs.alphas.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def _of(runs: Runs) -> tuple[int, int]:
    return len(runs.lengths), runs.lengths.data_ptr()


def entmax_supports(z: Tensor, alpha: float, exponent: float) -> Supports:
    """The supports of the rows z (N, V), with float32 weights; crowded rows have more than one in sixteen in them.

    Cost: one read of z; crowded rows take a few passes in cache.
    """
    z = z.detach().contiguous()
    num_rows, length = z.shape
    count = z.new_empty(num_rows, dtype=torch.int64)
    top, conjugate = z.new_empty(num_rows, 1, dtype=torch.float32), z.new_empty(num_rows, dtype=torch.float32)
    solution = z.new_zeros(num_rows, 3, dtype=torch.float64)  # of rows that are listed, nothing
    supports = library().hf_sparse_entmax_supports(
        z.data_ptr(), DTYPES.index(z.dtype), num_rows, length, alpha, exponent, length // _LARGEST_PART,
        torch.get_num_threads(), count.data_ptr(), top.data_ptr(), conjugate.data_ptr(), solution.data_ptr(),
    )  # fmt: skip
    return Supports(*_taken(supports, count), top, conjugate, count < 0, solution)


class Residuals(NamedTuple):
    """What the losses of rows (N, V) need, solved whole.

    Attributes:
        residual: (N, V) p less one at the target, in the dtype of the scores; p where there are no targets.
        top: (N,) the row's maximum; ``-inf`` for a fully masked row, which has no weights.
        conjugate: (N,) ``Omega*(z) - max z``, 0 for a fully masked row.
    """

    residual: Tensor
    top: Tensor
    conjugate: Tensor


def entmax_residuals(z: Tensor, target: Tensor | None, alpha: float, exponent: float) -> Residuals:
    """``p - e_target`` of the rows z (N, V), and what their losses follow from; target (N,) int64, or None.

    Cost: a read, a write, and Newton's steps in cache, on several rows at once: for rows of at most a few thousand.
    """
    z, target = z.detach().contiguous(), None if target is None else target.contiguous()
    num_rows, length = z.shape
    top, conjugate = z.new_empty(2, num_rows, dtype=torch.float32)
    found = Residuals(torch.empty_like(z), top, conjugate)
    library().hf_sparse_residuals(
        z.data_ptr(), None if target is None else target.data_ptr(), *(t.data_ptr() for t in found),
        DTYPES.index(z.dtype), num_rows, length, alpha, exponent, torch.get_num_threads(),
    )  # fmt: skip
    return found


def softmax_log_sums(z: Tensor) -> tuple[Tensor, Tensor]:
    """The maxima of the rows z (N, V), (N,) float32, and ``log sum exp z`` less those, (N,) float64.

    The latter is NaN where the maximum is none, or infinite: for a fully masked row, too.

    Cost: one read of z, and another in cache.
    """
    z = z.detach().contiguous()
    top, log_sum = (z.new_empty(len(z), dtype=dtype) for dtype in (torch.float32, torch.float64))
    library().hf_sparse_log_sums(
        z.data_ptr(), DTYPES.index(z.dtype), *z.shape, torch.get_num_threads(), top.data_ptr(), log_sum.data_ptr()
    )
    return top, log_sum


def write_softmax(z: Tensor, top: Tensor, log_sum: Tensor, target: Tensor, factor: Tensor) -> Tensor:
    """``factor (softmax(z) - e_target)``, shape and dtype of the rows z (N, V).

    Args:
        z: scores.
        top: (N,) of ``softmax_log_sums``, as is ``log_sum``.
        target: (N,) int64.
        factor: (N,) float32; rows of factor 0 are zero, whatever their scores.

    Cost: one read and one write.
    """
    z, target, factor = z.detach().contiguous(), target.contiguous(), factor.contiguous()
    out = torch.empty_like(z)
    library().hf_sparse_write_softmax(
        *(tensor.data_ptr() for tensor in (z, top, log_sum, target, factor, out)), DTYPES.index(z.dtype), *z.shape,
        torch.get_num_threads(),
    )  # fmt: skip
    return out


class ReluSupports(NamedTuple):
    """The supports of alpha-ReLU in rows (N, V), without their dense weights.

    Attributes:
        columns, p, crowded, solution: as in ``Supports``, except that the weights do not sum to one.
        mass: (N,) float64, ``sum [(alpha - 1) z - tau]_+ ^ (alpha / (alpha - 1))``; meaningless for a crowded row
            without a solution.
    """

    columns: Tensor
    p: Tensor
    mass: Tensor
    crowded: Tensor
    solution: Tensor | None = None


def relu_supports(z: Tensor, alpha: float, exponent: float, tau: float) -> ReluSupports:
    """The supports of alpha-ReLU in rows z (N, V). The mass of a row with a NaN or ``inf`` is that score.

    Cost: one read of z.
    """
    z = z.detach().contiguous()
    num_rows, length = z.shape
    count, mass = (z.new_empty(num_rows, dtype=dtype) for dtype in (torch.int64, torch.float64))
    solution = z.new_empty(num_rows, 3, dtype=torch.float64)
    supports = library().hf_sparse_relu_supports(
        z.data_ptr(), DTYPES.index(z.dtype), num_rows, length, alpha, exponent, tau, length // _LARGEST_PART,
        torch.get_num_threads(), count.data_ptr(), mass.data_ptr(), solution.data_ptr(),
    )  # fmt: skip
    return ReluSupports(*_taken(supports, count), mass, count < 0, solution)


def _taken(supports: int, count: Tensor) -> tuple[Tensor, Tensor]:
    """Columns and weights (N, C) of supports that the kernel holds."""
    width = max(int(count.max()), 0) if len(count) else 0
    columns, p = (count.new_empty(len(count), width, dtype=dtype) for dtype in (torch.int64, torch.float32))
    library().hf_sparse_take(supports, width, columns.data_ptr(), p.data_ptr())
    return columns, p


def write_rows(
    columns: Tensor,
    values: Tensor,
    length: int,
    dtype: torch.dtype,
    target: Tensor | None = None,
    factor: Tensor | None = None,
    skipped: Tensor | None = None,
) -> Tensor:
    """Rows of zeros (N, length) with ``values`` at their columns, or with ``factor (values - e_target)``.

    Args:
        columns: (N, C) int64, ascending in each row up to its last nonzero value.
        values: (N, C) float32.
        length: columns of the result.
        dtype: of the result: float32, bfloat16 or float16.
        target: (N,) int64.
        factor: (N,) float32, given with a target; rows of factor 0 are zero, whatever their values.
        skipped: (N,) bool, rows that are left without values.

    Cost: one write.
    """
    num_rows, width = columns.shape
    out = values.new_empty(num_rows, length, dtype=dtype)
    columns, values = columns.contiguous(), values.detach().contiguous()
    if target is not None and factor is not None:
        target, factor = target.contiguous(), factor.contiguous()
    library().hf_sparse_write(
        columns.data_ptr(), values.data_ptr(), width, None if target is None else target.data_ptr(),
        None if factor is None else factor.data_ptr(), None if skipped is None else skipped.data_ptr(),
        out.data_ptr(), DTYPES.index(dtype), num_rows, length, torch.get_num_threads(),
    )  # fmt: skip
    return out


def write_crowded(
    z: Tensor,
    crowded: Tensor,
    solution: Tensor,
    factor: Tensor,
    target: Tensor | None,
    alpha: float,
    exponent: float,
    out: Tensor,
) -> None:
    """Write ``factor (p - e_target)`` of the crowded rows into ``out``; without a target ``factor p``.

    Args:
        z: scores (N, V), contiguous, in the dtype of ``out``.
        crowded: (N,) bool; the other rows of ``out`` are left alone.
        solution: (N, 3), as in ``Supports``.
        factor: (N,) float32; rows of factor 0 are zero.
        target: (N,) int64.
        alpha: in (1, 2].
        exponent: ``1 / (alpha - 1)``.
        out: (N, V), contiguous.

    Cost: one read and one write of the crowded rows.
    """
    factor, target = factor.contiguous(), None if target is None else target.contiguous()
    library().hf_sparse_write_crowded(
        z.data_ptr(), crowded.data_ptr(), solution.data_ptr(), None if target is None else target.data_ptr(),
        factor.data_ptr(), out.data_ptr(), DTYPES.index(out.dtype), *out.shape, alpha, exponent,
        torch.get_num_threads(),
    )  # fmt: skip
