"""The entries of long rows that reach a bound, found in one streaming read.

A row is cut into chunks of neighbouring columns. The read takes their maxima. Where a chunk's maximum does not reach
the bound, nothing in it does; the others, copied side by side, are all that is looked at again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Maxima of 32 neighbours take half as long again as those of 64, and those of 16 seven times as long. Short rows need
# the smaller chunks: of larger ones nearly all would hold something.
_CHUNK, _SMALL_CHUNK, _SMALL_BELOW = 64, 32, 16_384
# A row with more of its chunks reaching the bound than this is left to dense arithmetic.
_MOST_REACH = 0.75


class Entries(NamedTuple):
    """Some entries of rows (N, V), by ascending row and column; and the rows that have too many of them.

    Attributes:
        row: (M,) int64.
        column: (M,) int64.
        value: (M,) the scores there.
        wide: (N,) bool, rows of which no entries are given because too much of them qualifies.
    """

    row: Tensor
    column: Tensor
    value: Tensor
    wide: Tensor


def _chunk_size(num_columns: int) -> int:
    return _SMALL_CHUNK if num_columns < _SMALL_BELOW else _CHUNK


def chunk_maxima(z: Tensor) -> Tensor:
    """The largest score of each chunk of z (N, V), V at least 32: (N, K). The last chunk may be a shorter one."""
    size = _chunk_size(z.shape[1])
    whole = z.shape[1] // size * size
    maxima = z[:, :whole].unflatten(1, (-1, size)).amax(-1)
    return maxima if whole == z.shape[1] else torch.cat([maxima, z[:, whole:].amax(-1, keepdim=True)], 1)


def entries_from(z: Tensor, maxima: Tensor, bound: Tensor) -> Entries:
    """The entries of z (N, V), contiguous, with ``z >= bound``.

    Args:
        z: scores of any floating-point dtype.
        maxima: ``chunk_maxima(z)``, in the dtype of the bound.
        bound: (N, 1); compared in its own dtype, in which the values come back. A NaN is reached by nothing.

    Cost: a copy of the chunks that reach the bound, and what is done to them.
    """
    (num_rows, num_columns), num_chunks, size = z.shape, maxima.shape[1], _chunk_size(z.shape[1])
    row, chunk = (maxima >= bound).nonzero(as_tuple=True)
    wide = torch.bincount(row, minlength=num_rows) > _MOST_REACH * num_chunks
    if bool(wide.any()):
        narrow = ~wide[row]
        row, chunk = row[narrow], chunk[narrow]
    # The last chunk is taken where its row ends, with columns in front of it that belong to the one before.
    first = (chunk * size).clamp_(max=num_columns - size)
    windows = z.as_strided((max(z.numel() - size + 1, 0), size), (1, 1))
    values = windows.index_select(0, row * num_columns + first).to(bound.dtype)
    if num_columns % size:
        last = (chunk == num_chunks - 1).nonzero()[:, 0]
        values[last, : num_chunks * size - num_columns] = -torch.inf
    place = _true_places(values >= bound[row])
    chunk = place // size
    column = first.index_select(0, chunk).add_(place % size)
    return Entries(row.index_select(0, chunk), column, values.view(-1).index_select(0, place), wide)


def _true_places(mask: Tensor) -> Tensor:
    """The flat places where a mask (G, 8 n) holds, ascending. Few do: it is looked at eight places at a time."""
    words = mask.view(torch.int64).view(-1)
    some = words.nonzero()[:, 0]
    place = words.index_select(0, some).view(torch.bool).nonzero()[:, 0]
    return some.index_select(0, place // 8).mul_(8).add_(place % 8)


class Padding(NamedTuple):
    """How M entries of N rows, by ascending row, are written as (N, C), C the most that a row has.

    Attributes:
        shape: (N, C).
        place: (M,) int64, in the flat (N * C,).
    """

    shape: tuple[int, int]
    place: Tensor

    @classmethod
    def of(cls, row: Tensor, num_rows: int) -> Padding:
        """For entries of these rows (M,)."""
        counts = torch.bincount(row, minlength=num_rows)
        width = int(counts.max()) if num_rows else 0
        shift = torch.arange(num_rows, device=row.device) * width - (counts.cumsum(0) - counts)
        return cls((num_rows, width), shift.index_select(0, row).add_(torch.arange(len(row), device=row.device)))

    def fill(self, values: Tensor, unused: float) -> Tensor:
        """The values (M,) as (N, C), and ``unused`` where a row has fewer."""
        padded = torch.full(self.shape, unused, dtype=values.dtype, device=values.device)
        padded.view(-1).scatter_(0, self.place, values)
        return padded
