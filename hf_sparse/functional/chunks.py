"""The entries of long rows that reach a bound, found in one streaming read.

A row is cut into chunks of neighbouring columns, and the read takes their maxima. Chunks whose maximum does not reach
the bound are dropped; the others are copied side by side, and only they are read again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Chunks have 64 columns; in short rows, where nearly all of these would reach the bound, 32. Maxima of 32 neighbours
# take half as long again as those of 64, and those of 16 seven times as long. Powers of two divide by shifts.
_CHUNK_BITS, _SMALL_CHUNK_BITS, _SMALL_BELOW = 6, 5, 16_384
# Entries are searched eight at a time. A row in which more than this share of the eights hold one is left to dense
# arithmetic: one entry in four reaches the bound there, and their places take more room than the row.
_EIGHT_BITS, _MOST_EIGHTS = 3, 0.9
# Losses solve rows densely where more than this share of the chunks hold candidates: if they are spread evenly, one
# entry in sixteen.
MOST_CHUNKS = 0.98


class Entries(NamedTuple):
    """Entries of rows (N, V), by ascending row and column, and the rows that have too many of them.

    Attributes:
        row: (M,) int64.
        column: (M,) int64.
        value: (M,) the scores there.
        crowded: (N,) bool, rows left out because too many of their entries qualify.
    """

    row: Tensor
    column: Tensor
    value: Tensor
    crowded: Tensor


def _chunk_bits(num_columns: int) -> int:
    return _SMALL_CHUNK_BITS if num_columns < _SMALL_BELOW else _CHUNK_BITS


def chunk_maxima(z: Tensor) -> Tensor:
    """The largest score of each chunk of z (N, V), V at least 32: (N, K). The last chunk may be a shorter one."""
    size = 1 << _chunk_bits(z.shape[1])
    whole = z.shape[1] // size * size
    maxima = z[:, :whole].unflatten(1, (-1, size)).amax(-1)
    return maxima if whole == z.shape[1] else torch.cat([maxima, z[:, whole:].amax(-1, keepdim=True)], 1)


def entries_from(z: Tensor, maxima: Tensor, bound: Tensor, most: float = 1.0) -> Entries:
    """The entries of z (N, V), contiguous, with ``z >= bound``.

    Args:
        z: scores of any floating-point dtype.
        maxima: ``chunk_maxima(z)``, in the dtype of the bound.
        bound: (N, 1); compared in its own dtype, which is that of the values returned. Nothing reaches a NaN.
        most: rows in which more than this share of the chunks reach the bound are crowded.

    Cost: a copy of the chunks that reach the bound, and work in proportion to it.
    """
    (num_rows, num_columns), num_chunks, bits = z.shape, maxima.shape[1], _chunk_bits(z.shape[1])
    size = 1 << bits
    row, chunk = (maxima >= bound).nonzero(as_tuple=True)
    crowded = torch.bincount(row, minlength=num_rows) > most * num_chunks
    if bool(crowded.any()):
        kept = ~crowded[row]
        row, chunk = row[kept], chunk[kept]
    # The last chunk ends with its row, and so begins with columns of the chunk before.
    first = (chunk * size).clamp_(max=num_columns - size)
    windows = z.as_strided((max(z.numel() - size + 1, 0), size), (1, 1))
    values = windows.index_select(0, row * num_columns + first).to(bound.dtype)
    if num_columns % size:
        last = (chunk == num_chunks - 1).nonzero()[:, 0]
        values[last, : num_chunks * size - num_columns] = -torch.inf

    eights = (values >= bound.index_select(0, row)).view(torch.int64).view(-1)
    some = eights.nonzero()[:, 0]
    owner = row.index_select(0, some >> (bits - _EIGHT_BITS))
    full = (torch.bincount(owner, minlength=num_rows) << _EIGHT_BITS) > _MOST_EIGHTS * num_columns
    if bool(full.any()):
        some, crowded = some[~full[owner]], crowded | full
    place = eights.index_select(0, some).view(torch.bool).nonzero()[:, 0]
    first_of_eight = some.index_select(0, place >> _EIGHT_BITS) << _EIGHT_BITS
    place = first_of_eight.add_(place.bitwise_and_((1 << _EIGHT_BITS) - 1))
    chunk = place >> bits
    column = first.index_select(0, chunk).add_(place & (size - 1))
    return Entries(row.index_select(0, chunk), column, values.view(-1).index_select(0, place), crowded)


class Padding(NamedTuple):
    """The layout (N, C) of M entries of N rows, given by ascending row, with C the largest number in a row.

    Attributes:
        shape: (N, C).
        place: (M,) int64, in the flat (N * C,).
    """

    shape: tuple[int, int]
    place: Tensor

    @classmethod
    def of(cls, row: Tensor, num_rows: int) -> Padding:
        """The layout of entries whose rows are ``row`` (M,)."""
        counts = torch.bincount(row, minlength=num_rows)
        width = int(counts.max()) if num_rows else 0
        shift = torch.arange(num_rows, device=row.device) * width - (counts.cumsum(0) - counts)
        return cls((num_rows, width), shift.index_select(0, row).add_(torch.arange(len(row), device=row.device)))

    def fill(self, values: Tensor, unused: float) -> Tensor:
        """The values (M,) as (N, C), with ``unused`` where a row has fewer."""
        padded = torch.full(self.shape, unused, dtype=values.dtype, device=values.device)
        padded.view(-1).scatter_(0, self.place, values)
        return padded
