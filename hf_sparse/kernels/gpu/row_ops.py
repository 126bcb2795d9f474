"""The row kernels as operators of torch, with what a compiler needs to know of their results."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ._rows import RowSolutions, block_of, jacobian_product, solve, write


@torch.library.custom_op("hf_sparse::entmax_rows", mutates_args=())
def row_weights(z: Tensor, alpha: float, exponent: float) -> Tensor:
    """entmax over the last axis of z (N, V), in its dtype; computed in float32."""
    z = z.contiguous()
    return write(z, solve(z, alpha, exponent), alpha, exponent)


@row_weights.register_fake
def _(z: Tensor, alpha: float, exponent: float) -> Tensor:
    return z.new_empty(z.shape)


@torch.library.custom_op("hf_sparse::entmax_rows_jacobian_product", mutates_args=())
def row_jacobian_product(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """``J g`` of entmax at its weights p (N, V), in the dtype of p."""
    return jacobian_product(p.contiguous(), grad.contiguous(), alpha)


@row_jacobian_product.register_fake
def _(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    return p.new_empty(p.shape)


@torch.library.custom_op("hf_sparse::solve_rows", mutates_args=())
def solved_rows(z: Tensor, alpha: float, exponent: float, tau: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """``RowSolutions`` of z (N, V): of entmax, or of alpha-ReLU where tau is given."""
    conjugate, solution, peaks, _ = solve(z.contiguous(), alpha, exponent, tau)
    return conjugate, solution, peaks


@solved_rows.register_fake
def _(z: Tensor, alpha: float, exponent: float, tau: float | None) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, length = z.shape
    num_blocks = triton.cdiv(length, block_of(length))
    conjugate = z.new_empty((num_rows,), dtype=torch.float32)
    return conjugate, conjugate.new_empty((num_rows, 3)), conjugate.new_empty((num_rows, num_blocks))


@torch.library.custom_op("hf_sparse::row_loss_gradients", mutates_args=())
def row_loss_gradients(
    z: Tensor,
    conjugate: Tensor,
    solution: Tensor,
    peaks: Tensor,
    grad: Tensor,
    target: Tensor | None,
    alpha: float,
    exponent: float,
) -> Tensor:
    """``grad (p - y)`` (N, V) in the dtype of z, for class targets y (N,); ``grad p`` without targets."""
    solutions = RowSolutions(conjugate, solution, peaks)
    return write(z.contiguous(), solutions, alpha, exponent, grad.float().contiguous(), target)


@row_loss_gradients.register_fake
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
