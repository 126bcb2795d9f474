"""The supports of rows as entries of a sparse matrix, and the product of such a matrix with a dense one.

Fused linear losses need both: of a chunk of logits only the list is kept, and the two gradients of the linear layer
are products with that list. Each row of a product is always summed in the same order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._launch import on_device_of, unit, whole
from ._newton import slope_power
from ._row_kernels import row_scores
from .listing import Listing
from .rows import RowSolutions, block_size, num_blocks

# Entries per multiplication, columns of the result per program, and steps per partial sum: float32 drifts where
# thousands of terms are added one by one.
_ENTRIES, _COLUMNS, _STEPS = 8, 512, 32


@triton.jit(do_not_specialize=["num_blocks", "first_row"])
def list_rows(
    Z, SOLUTION, PEAKS, COUNT, START, ROW, COLUMN, VALUE, stride, length, num_blocks, first_row, alpha, exponent,
    softcap, factor, EXPONENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row per program: its COUNT entries from START on, in the order of columns; a negative START lists none.

    VALUE is ``factor p``, times ``1 - (z / softcap)^2`` where there is a softcap. A row without a solution is one NaN.
    """
    row = tl.program_id(0).to(tl.int64)
    start = tl.load(START + row)
    base = tl.load(SOLUTION + row * 3)
    shift = tl.load(SOLUTION + row * 3 + 1)
    mass = tl.load(SOLUTION + row * 3 + 2)
    if start >= 0:
        if mass != mass:
            tl.store(ROW + start, (first_row + row).to(tl.int32))
            tl.store(COLUMN + start, 0)
            tl.store(VALUE + start, mass)
        else:
            end = start + tl.load(COUNT + row)
            for block in range(num_blocks):
                if (tl.load(PEAKS + row * num_blocks + block) - base) * (alpha - 1) + shift > 0:
                    z = row_scores(Z + row * stride, block, length, BLOCK)
                    u = tl.maximum((z - base) * (alpha - 1) + shift, 0.0)
                    value = slope_power(u, exponent, EXPONENT) * u / mass * factor
                    if softcap is not None:
                        value *= 1 - (z / softcap) * (z / softcap)
                    found = u > 0
                    place = start + tl.cumsum(found.to(tl.int32), 0) - 1
                    found = found & (place < end)
                    tl.store(ROW + place, (tl.zeros((BLOCK,), tl.int64) + first_row + row).to(tl.int32), mask=found)
                    tl.store(COLUMN + place, block * BLOCK + tl.arange(0, BLOCK), mask=found)
                    tl.store(VALUE + place, value, mask=found)
                    start += tl.sum(found.to(tl.int32), 0)


@triton.jit
def sum_rows(
    START, INDEX, VALUE, TABLE, OUT, table_row, num_columns, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """COLUMNS of one row of OUT per program: rows INDEX of TABLE weighted by VALUE, from START to the next START."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    end = tl.load(START + row + 1)
    total = tl.zeros((COLUMNS,), tl.float32)
    for run in range(tl.load(START + row), end, ENTRIES * STEPS):
        part = tl.zeros((ENTRIES, COLUMNS), tl.float32)
        for first in range(run, tl.minimum(run + ENTRIES * STEPS, end), ENTRIES):
            entry = first + tl.arange(0, ENTRIES)
            index = tl.load(INDEX + entry, mask=entry < end, other=0).to(tl.int64)
            value = tl.load(VALUE + entry, mask=entry < end, other=0.0)
            inside = (entry < end)[:, None] & (column < num_columns)[None, :]
            rows = tl.load(TABLE + index[:, None] * table_row + column[None, :], mask=inside, other=0.0)
            part += value[:, None] * rows
        total += tl.sum(part, 0)
    tl.store(OUT + row * num_columns + column, total.to(OUT.dtype.element_ty), mask=column < num_columns)


def list_support(
    z: Tensor,
    solutions: RowSolutions,
    listing: Listing,
    chunk: int,
    first_row: int,
    most: int,
    alpha: float,
    exponent: float,
    softcap: float | None = None,
    factor: float = 1.0,
) -> None:
    """Add the supports of solved rows to ``listing``, unless they have more than ``most`` entries.

    Args:
        z: as given to ``row_solutions``.
        solutions: what ``row_solutions`` returned, with its counts.
        listing: with room for ``most`` entries of every chunk.
        chunk: the number of this chunk; chunks come in order.
        first_row: the index of the first row.
        most: the largest number of entries to list.
        alpha: as given to ``row_solutions``.
        exponent: as given to ``row_solutions``.
        softcap: values are multiplied by ``1 - (z / softcap)^2``, unless None.
        factor: on the values.

    Cost: one read of the blocks that hold support.
    """
    assert solutions.support_size is not None
    count = solutions.support_size.long()
    total, before = count.sum(), listing.sizes[:chunk].clamp(min=0).sum()
    start = torch.where(total <= most, before + count.cumsum(0) - count, -1)
    listing.sizes[chunk] = torch.where(total <= most, total, -1)
    num_rows, length = z.shape
    with on_device_of(z):
        list_rows[(num_rows,)](
            z, solutions.solution, solutions.peaks, solutions.support_size, start, listing.row, listing.column,
            listing.value, z.stride(0), length, num_blocks(length), first_row, alpha, exponent,
            softcap, factor, EXPONENT=whole(exponent), BLOCK=block_size(length),
        )  # fmt: skip


def multiply(row: Tensor, column: Tensor, value: Tensor, table: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
    """The product (num_rows, D) of a sparse matrix with ``table``, accumulated in float32; the same every time.

    Args:
        row: (M,) integers below ``num_rows``, in any order; places may repeat and then add up.
        column: (M,) integers, rows of the table.
        value: (M,) float32.
        table: (K, D) float32, bfloat16 or float16, any strides.
        num_rows: rows of the result.
        dtype: of the result.

    Cost: a sort of the entries and a read of one row of ``table`` per entry; nothing on the host.
    """
    table = unit(table)
    row, order = row.to(torch.int32).sort(stable=True)
    starts = torch.searchsorted(row, torch.arange(num_rows + 1, dtype=torch.int32, device=row.device))
    num_columns = table.shape[1]
    out = torch.empty((num_rows, num_columns), dtype=dtype, device=table.device)
    columns = min(_COLUMNS, max(16, triton.next_power_of_2(num_columns)))
    if num_rows:
        with on_device_of(table):
            sum_rows[(num_rows, triton.cdiv(num_columns, columns))](
                starts, column[order], value[order], table, out, table.stride(0), num_columns,
                ENTRIES=_ENTRIES, COLUMNS=columns, STEPS=_STEPS,
            )  # fmt: skip
    return out
