"""Products of a sparse (N, V) matrix with the two sides of a linear layer, by gathering only the rows it touches."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# A float32 sum of 50,000 equal terms drifts by 1e-4 when added one by one: sum runs of this many, and the runs in
# float64.
_RUN = 256


class SupportEntries(NamedTuple):
    """A sparse (N, V) matrix, entry by entry in any order; places may repeat and then add up.

    Attributes:
        row: (M,) int64.
        column: (M,) int64.
        value: (M,) float32 or float64.
    """

    row: Tensor
    column: Tensor
    value: Tensor

    @staticmethod
    def joined(parts: list[SupportEntries]) -> SupportEntries:
        """One matrix, the sum of several (at least one)."""
        row, column, value = (torch.cat(field) for field in zip(*parts))
        return SupportEntries(row, column, value)

    def transposed(self) -> SupportEntries:
        """The same matrix with rows and columns exchanged."""
        return SupportEntries(self.column, self.row, self.value)


def gather_sum(matrix: SupportEntries, table: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
    """The product ``matrix @ table`` (num_rows, D), added up in the dtype of the matrix's values.

    Args:
        matrix: entries of a (num_rows, K) matrix.
        table: (K, D), any floating-point dtype; half precision is widened for the rows touched only.
        num_rows: rows of the result.
        dtype: of the result.

    Cost: a sort of the entries and one weighted row of ``table`` an entry.
    """
    row, order = matrix.row.sort(stable=True)
    index, value = matrix.column[order], matrix.value[order]
    if table.dtype != value.dtype:
        touched, index = index.unique(return_inverse=True)
        table = table[touched].to(value.dtype)
    counts = torch.bincount(row, minlength=num_rows)
    starts = counts.cumsum(0).sub_(counts)
    rank = torch.arange(len(row), device=row.device) - starts[row]
    early = rank < _RUN
    if bool(early.all()):
        # While the result is written, as little as possible of one number a row beside it: half of it in int32.
        del counts
        starts = starts.int()
        return F.embedding_bag(index.int(), table, starts, mode="sum", per_sample_weights=value).to(dtype)
    counts = counts.clamp(max=_RUN)
    total = F.embedding_bag(
        index[early], table, counts.cumsum(0) - counts, mode="sum", per_sample_weights=value[early]
    )
    row, index, value, rank = row[~early], index[~early], value[~early], rank[~early]
    begins = (rank % _RUN == 0).nonzero()[:, 0]
    later = F.embedding_bag(index, table, begins, mode="sum", per_sample_weights=value)
    long, owner = row[begins].unique_consecutive(return_inverse=True)
    total[long] = total[long].double().index_add_(0, owner, later.double()).to(total.dtype)
    return total.to(dtype)
