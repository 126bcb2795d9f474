"""The Triton row kernels as operators of torch, which ``torch.compile`` keeps whole. No gradient flows through them.

Experimental: one GPU has run them. Defining them imports no Triton; the first call does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .gpu.listing import Listing


@torch.library.custom_op("hf_sparse::entmax_rows", mutates_args=())
def triton_weights(z: Tensor, alpha: float, exponent: float) -> Tensor:
    """entmax over the last axis, shape and dtype of z; computed in float32.

    Args:
        z: (..., V) float32, bfloat16 or float16; ``-inf`` masks an entry.
        alpha: in [1.1, 2].
        exponent: ``1 / (alpha - 1)``.
    """
    from .gpu.rows import row_solutions, row_weights

    rows = z.reshape(-1, z.shape[-1]).contiguous()
    return row_weights(rows, row_solutions(rows, alpha, exponent), alpha, exponent).view(z.shape)


@triton_weights.register_fake
def _(z: Tensor, alpha: float, exponent: float) -> Tensor:
    return z.new_empty(z.shape)


@torch.library.custom_op("hf_sparse::entmax_rows_jacobian_product", mutates_args=())
def triton_jacobian_product(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """``J g = s (g - mean_s g)``, ``s = p^(2 - alpha)`` on the support; p and g (..., V), in the dtype of p."""
    from .gpu.rows import row_jacobian_product

    flat, flat_grad = (x.reshape(-1, p.shape[-1]).contiguous() for x in (p, grad))
    return row_jacobian_product(flat, flat_grad, alpha).view(p.shape)


@triton_jacobian_product.register_fake
def _(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    return p.new_empty(p.shape)


@torch.library.custom_op("hf_sparse::solve_rows", mutates_args=())
def triton_solve(z: Tensor, alpha: float, exponent: float, tau: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Rows z (N, V) solved for entmax, or for alpha-ReLU with its tau: all that ``triton_loss_gradients`` needs.

    Returns:
        conjugate: (N,) float32 ``Omega*(z) - max z``; for alpha-ReLU ``sum u^(alpha / (alpha - 1))``.
        solution: (N, 3) whose first column is ``max z`` for entmax, 0 for a fully masked row.
        peaks: (N, blocks).
    """
    from .gpu.rows import row_solutions

    conjugate, solution, peaks, _ = row_solutions(z.contiguous(), alpha, exponent, tau)
    return conjugate, solution, peaks


@triton_solve.register_fake
def _(z: Tensor, alpha: float, exponent: float, tau: float | None) -> tuple[Tensor, Tensor, Tensor]:
    from .gpu.rows import num_blocks

    num_rows, length = z.shape
    conjugate = z.new_empty((num_rows,), dtype=torch.float32)
    return conjugate, conjugate.new_empty((num_rows, 3)), conjugate.new_empty((num_rows, num_blocks(length)))


@torch.library.custom_op("hf_sparse::row_loss_gradients", mutates_args=())
def triton_loss_gradients(
    z: Tensor,
    conjugate: Tensor,
    solution: Tensor,
    peaks: Tensor,
    grad: Tensor,
    target: Tensor | None,
    alpha: float,
    exponent: float,
) -> Tensor:
    """``grad (p - y)`` (N, V) in the dtype of z.

    Args:
        z: as given to ``triton_solve``, like ``alpha`` and ``exponent``.
        conjugate: as ``triton_solve`` returned it, like ``solution`` and ``peaks``.
        grad: (N,) a factor for each row.
        target: (N,) int64, the classes y; None for ``grad p``.
        alpha: of the map.
        exponent: ``1 / (alpha - 1)``.
    """
    from .gpu.rows import RowSolutions, row_weights

    solutions = RowSolutions(conjugate, solution, peaks)
    return row_weights(z.contiguous(), solutions, alpha, exponent, grad.float().contiguous(), target)


@triton_loss_gradients.register_fake
def _(
    z: Tensor,
    conjugate: Tensor,
    solution: Tensor,
    peaks: Tensor,
    grad: Tensor,
    target: Tensor | None,
    alpha: float,
    exponent: float,
) -> Tensor:
    return z.new_empty(z.shape)


def triton_list_support(
    z: Tensor,
    listing: Listing,
    chunk: int,
    first_row: int,
    most: int,
    alpha: float,
    exponent: float,
    tau: float | None,
    softcap: float | None,
    factor: float,
) -> tuple[Tensor, Tensor]:
    """Solve a chunk of rows z (N, V) and list its support, unless that has more than ``most`` entries.

    Listed are rows, counted from ``first_row``, columns, and ``factor p``, times ``1 - (z / softcap)^2`` where there
    is a softcap. No operator: a listing has no size that a compiler could know.

    Returns:
        conjugate: (N,) float32 as ``triton_solve``.
        top: (N,) the row's maximum for entmax, 0 for a fully masked row and for alpha-ReLU.
    """
    from .gpu.rows import row_solutions
    from .gpu.support import list_support

    solutions = row_solutions(z, alpha, exponent, tau, counting=True)
    list_support(z, solutions, listing, chunk, first_row, most, alpha, exponent, softcap, factor)
    return solutions.conjugate, solutions.solution[:, 0]


def triton_multiply(
    row: Tensor, column: Tensor, value: Tensor, table: Tensor, num_rows: int, dtype: torch.dtype
) -> Tensor:
    """A sparse matrix, its entries (M,) in any order, times ``table`` (K, D): (num_rows, D) in ``dtype``."""
    from .gpu.support import multiply

    return multiply(row, column, value, table, num_rows, dtype)
