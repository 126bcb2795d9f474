"""Products of a large matrix with a few vectors, by the C++ kernel: bounded, and exact where they matter.

See cpp/screen.hpp for the bound. No gradient flows through any of it.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from ._library import library
from ._limits import DTYPES

# Columns that share a scale.
_GROUP = 64


class CodedRows(NamedTuple):
    """The rows of a matrix (V, D) in 8 bits a weight: 1.0625 bytes for each.

    Attributes:
        code: (V, G * 64) int8, zero after column D.
        groups: (V, G) int32, for each 64 columns the scale and the bound on what is lost, in bfloat16.
    """

    code: Tensor
    groups: Tensor


def screening_problem(matrix: Tensor) -> str | None:
    """Why the kernel cannot take the weights (V, D) of a linear layer, or None."""
    if matrix.device.type != "cpu" or matrix.dtype not in DTYPES:
        return (
            f"takes weights on the CPU of one of {', '.join(map(str, DTYPES))}, was {matrix.dtype} on {matrix.device}"
        )
    return None if matrix.is_contiguous() else f"takes contiguous weights, was of strides {matrix.stride()}"


class Screened(NamedTuple):
    """Products of a matrix (V, D) with N vectors, most of them approximate.

    Attributes:
        product: (N, V) float32.
        slack: (N, V) float32, bounds on how far each product is from the exact one, the rounding of the sum aside.
        columns: (N, K) int64, the K largest products, in no order.
        exact: (N, K) float32, their exact values.
    """

    product: Tensor
    slack: Tensor
    columns: Tensor
    exact: Tensor


def code_rows(matrix: Tensor) -> CodedRows | None:
    """The rows of a matrix that has no ``screening_problem``; None if an entry is not finite, or huge."""
    num_rows, width = matrix.shape
    num_groups = -(-width // _GROUP)
    code = torch.empty(num_rows, num_groups * _GROUP, dtype=torch.int8, device="cpu")
    groups = torch.empty(num_rows, num_groups, dtype=torch.int32, device="cpu")
    fine = ctypes.c_int()
    library().hf_sparse_code_rows(
        matrix.data_ptr(), DTYPES.index(matrix.dtype), num_rows, width, code.data_ptr(), groups.data_ptr(),
        torch.get_num_threads(), ctypes.byref(fine),
    )  # fmt: skip
    return CodedRows(code, groups) if fine.value else None


def fingerprint(x: Tensor) -> int:
    """A number that every change of one entry changes, and any other change almost surely. Cost: one read.

    Args:
        x: contiguous, any dtype.
    """
    found = ctypes.c_uint64()
    library().hf_sparse_fingerprint(
        x.data_ptr(), x.numel() * x.element_size(), torch.get_num_threads(), ctypes.byref(found)
    )
    return found.value


def screen(rows: CodedRows, matrix: Tensor, bias: Tensor | None, vectors: Tensor, most: int) -> Screened | None:
    """Products with vectors (N, D), and those exactly that seem largest.

    Args:
        rows: ``code_rows(matrix)``.
        matrix: (V, D) contiguous.
        bias: (V,) float32, contiguous, added to the products; ``-inf`` is allowed. Or None.
        vectors: (N, D) float32, contiguous.
        most: the number of products to return exactly for each vector, at most V.

    Returns:
        None if a vector, a bias or a product is not finite, or huge.
    """
    (num_rows, width), num_vectors = matrix.shape, len(vectors)
    product = torch.empty(num_vectors, num_rows, dtype=torch.float32, device="cpu")
    columns = torch.empty(num_vectors, most, dtype=torch.int64, device="cpu")
    slack, exact = torch.empty_like(product), torch.empty_like(columns, dtype=torch.float32)
    fine = ctypes.c_int()
    library().hf_sparse_screen(
        matrix.data_ptr(), DTYPES.index(matrix.dtype), None if bias is None else bias.data_ptr(), rows.code.data_ptr(),
        rows.groups.data_ptr(), num_rows, width, vectors.data_ptr(), num_vectors, most, product.data_ptr(),
        slack.data_ptr(), columns.data_ptr(), exact.data_ptr(), torch.get_num_threads(), ctypes.byref(fine),
    )  # fmt: skip
    return Screened(product, slack, columns, exact) if fine.value else None


def refine_(found: Screened, matrix: Tensor, bias: Tensor | None, vectors: Tensor, cut: Tensor) -> Tensor:
    """Put exact products in the place of all that may be as large as ``cut`` (N,) float32, in place.

    Returns:
        (N,) int64, how many they are; -1 where an exact product was further off than its slack, so that ``found``
        is not of this matrix.
    """
    count = torch.empty(len(vectors), dtype=torch.int64, device="cpu")
    library().hf_sparse_refine(
        matrix.data_ptr(), DTYPES.index(matrix.dtype), None if bias is None else bias.data_ptr(), *matrix.shape,
        vectors.data_ptr(), len(vectors), cut.data_ptr(), found.slack.data_ptr(), found.product.data_ptr(),
        torch.get_num_threads(), count.data_ptr(),
    )  # fmt: skip
    return count
