"""Launches of the row kernels on tensors (N, V). No gradient flows through them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ._launch import on_device_of, whole
from ._row_kernels import multiply_by_jacobian, solve_rows, write_weights

# Scores per block: at 262,144 classes that makes 256 peaks, which one program holds. There are only a few sizes, since
# each compiles a variant of its own.
LARGEST_BLOCK, _SHORT = 1024, 256
_FEW_BLOCKS, _BLOCKS = 16, 256
_MAX_STEPS = 40


class RowSolutions(NamedTuple):
    """The solutions of rows (N, V), all float32.

    Attributes:
        conjugate: (N,) ``Omega*(z) - max z`` for entmax, ``sum u^(P + 1)`` for alpha-ReLU; NaN for a row that holds a
            NaN or ``inf``.
        solution: (N, 3) base, shift and mass: the weights are ``[(alpha - 1) (z - base) + shift]_+^P / mass``.
        peaks: (N, blocks) the largest score of each block of the row.
        support_size: (N,) int32, where asked for; 1 for a row that holds a NaN or ``inf``.
    """

    conjugate: Tensor
    solution: Tensor
    peaks: Tensor
    support_size: Tensor | None = None


def block_size(length: int) -> int:
    """Scores per block in rows of ``length``."""
    return min(LARGEST_BLOCK, _SHORT) if length <= _SHORT else LARGEST_BLOCK


def num_blocks(length: int) -> int:
    """Blocks per row of ``length``."""
    return triton.cdiv(length, block_size(length))


def _room_for(count: int) -> int:
    """Blocks that the compiled variant for ``count`` of them has room for."""
    return _FEW_BLOCKS if count <= _FEW_BLOCKS else max(_BLOCKS, triton.next_power_of_2(count))


def row_solutions(
    z: Tensor, alpha: float, exponent: float, tau: float | None = None, counting: bool = False
) -> RowSolutions:
    """Solve rows of scores.

    Args:
        z: (N, V) float32, bfloat16 or float16, rows contiguous; ``-inf`` masks an entry.
        alpha: in [1.1, 2] where tau is None, else above 1.
        exponent: ``1 / (alpha - 1)``.
        tau: the threshold of alpha-ReLU; None solves for that of entmax.
        counting: whether to return the sizes of the supports.

    Cost: one read of z, and reads of the blocks that can hold support, three to ten times.
    """
    num_rows, length = z.shape
    blocks = num_blocks(length)
    conjugate, solution, peaks = (
        torch.empty(shape, dtype=torch.float32, device=z.device)
        for shape in ((num_rows,), (num_rows, 3), (num_rows, blocks))
    )
    count = torch.empty(num_rows, dtype=torch.int32, device=z.device) if counting else None
    if num_rows:
        with on_device_of(z):
            solve_rows[(num_rows,)](
                z, conjugate, solution, peaks, count, z.stride(0), length, blocks, alpha, exponent, tau,
                # Twice the rounding error of float32 sums, which the exponent multiplies.
                4e-7 * max(2.0, exponent), _MAX_STEPS,
                EXPONENT=whole(exponent), BLOCK=block_size(length), BLOCKS=_room_for(blocks),
            )  # fmt: skip
    return RowSolutions(conjugate, solution, peaks, count)


def row_weights(
    z: Tensor,
    solutions: RowSolutions,
    alpha: float,
    exponent: float,
    grad: Tensor | None = None,
    target: Tensor | None = None,
) -> Tensor:
    """The weights p (N, V) of solved rows, or ``grad (p - y)``, in the dtype of z.

    Args:
        z: as given to ``row_solutions``.
        solutions: what ``row_solutions`` returned.
        alpha: as given to ``row_solutions``.
        exponent: as given to ``row_solutions``.
        grad: (N,) float32, a factor for each row.
        target: (N,) int64, the classes y.

    Cost: one write, and one read of the blocks that hold support.
    """
    num_rows, length = z.shape
    out = torch.empty((num_rows, length), dtype=z.dtype, device=z.device)
    blocks = num_blocks(length)
    if num_rows:
        with on_device_of(z):
            write_weights[(num_rows, blocks)](
                z, solutions.solution, solutions.peaks, target, grad, out, z.stride(0), length, blocks, alpha,
                exponent, EXPONENT=whole(exponent), BLOCK=block_size(length),
            )  # fmt: skip
    return out


def row_jacobian_product(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """``J g = s (g - mean_s g)``, ``s = p^(2 - alpha)`` on the support; p and g (N, V), contiguous; in the dtype of p.

    Cost: two reads of p, one write, and two reads of g where blocks of p are not all zero.
    """
    out = torch.empty_like(p)
    num_rows, length = p.shape
    if num_rows:
        with on_device_of(p):
            multiply_by_jacobian[(num_rows,)](
                p, grad, out, length, num_blocks(length), alpha, BLOCK=block_size(length)
            )  # fmt: skip
    return out
