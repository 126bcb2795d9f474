"""Rows of scores of a linear layer from a product in bfloat16, exact where they can be above a map's threshold.

See cpp/screened_rows.hpp for the bound. No gradient flows through any of it.
"""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

import torch
from torch import Tensor

from ._library import library


class RoundedRows(NamedTuple):
    """The rows of a matrix (N, D), rounded.

    Attributes:
        rows: (N, D) bfloat16.
        norm: (N,) float32, bounds on the norms of the rows.
        lost: (N,) float32, bounds on the norms of what rounding lost.
    """

    rows: Tensor
    norm: Tensor
    lost: Tensor


class Candidates(NamedTuple):
    """The entries of rows of scores (N, V) that can have weight.

    Attributes:
        columns: (N, C) int64, ascending, 0 where a row has fewer than C.
        scores: (N, C) float32, ``-inf`` where a row has fewer.
    """

    columns: Tensor
    scores: Tensor


def bfloat16_is_fast() -> bool:
    """Whether torch multiplies in bfloat16 several times as fast as in float32 here: with AMX, where it may use it."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and bool(capabilities.get("amx_bf16", False))


def round_rows(matrix: Tensor) -> RoundedRows | None:
    """A matrix (N, D), float32 and contiguous, in bfloat16; None if an entry is not finite, or huge."""
    num_rows, width = matrix.shape
    rows = torch.empty(num_rows, width, dtype=torch.bfloat16, device="cpu")
    norm, lost = torch.empty(2, num_rows, dtype=torch.float32, device="cpu")
    fine = ctypes.c_int()
    library().hf_sparse_round_rows(
        matrix.data_ptr(), num_rows, width, rows.data_ptr(), norm.data_ptr(), lost.data_ptr(),
        torch.get_num_threads(), ctypes.byref(fine),
    )  # fmt: skip
    return RoundedRows(rows, norm, lost) if fine.value else None


def list_candidates(
    hidden: Tensor,
    matrix: Tensor,
    rounded: RoundedRows,
    bias: Tensor | None,
    alpha: float,
    exponent: float,
    tau: float | None,
    most: int,
) -> Candidates | None:
    """The scores ``h W^T + b`` that can have weight, of rows in which they are few.

    Args:
        hidden: h (N, D), float32, contiguous.
        matrix: W (V, D), float32, contiguous.
        rounded: ``round_rows(matrix)``.
        bias: b (V,) float32, contiguous, or None.
        alpha: of entmax in (1, 2]; of alpha-ReLU above 1.
        exponent: ``1 / (alpha - 1)``.
        tau: the threshold of alpha-ReLU; None for entmax.
        most: entries of a row, at most.

    Returns:
        None if a row has more, or a score is not finite, or not within its bound.

    Cost: a product in bfloat16, three reads of it, and a row of W for each candidate. Memory: 2 N V bytes.
    """
    own = round_rows(hidden)
    if own is None:
        return None
    product = own.rows @ rounded.rows.t()
    num_rows, length = product.shape
    columns = torch.zeros(num_rows, most, dtype=torch.int64, device="cpu")
    scores, count = columns.new_full((num_rows, most), -torch.inf, dtype=torch.float32), columns.new_empty(num_rows)
    library().hf_sparse_list_candidates(
        product.data_ptr(), hidden.data_ptr(), matrix.data_ptr(), None if bias is None else bias.data_ptr(),
        own.norm.data_ptr(), own.lost.data_ptr(), rounded.norm.data_ptr(), rounded.lost.data_ptr(), num_rows, length,
        matrix.shape[1], most, alpha, exponent, math.nan if tau is None else tau,
        columns.data_ptr(), scores.data_ptr(), count.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    if int(count.min()) < 0:
        return None
    width = max(int(count.max()), 1)
    return Candidates(columns[:, :width].contiguous(), scores[:, :width].contiguous())
