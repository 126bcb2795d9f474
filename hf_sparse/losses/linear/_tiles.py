"""A linear layer tile by tile: its logits, the sparse weights listed from them, and products with those.

A tile is some rows and some classes whose logits are held together; no more are ever held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Gathering beats the dense products as long as at most one weight in this many is nonzero (D = 512, 2 cores).
_DENSE_BELOW = 128
# Logits held at a time, in entries.
TILE = 1 << 24
# A float32 sum of 50,000 equal terms drifts by 1e-4 when added one by one: sum runs of this many, and the runs in
# float64.
_RUN = 256


class Tile(NamedTuple):
    """Rows (n,), int64, and classes whose logits are computed together."""

    rows: Tensor
    columns: slice

    @property
    def num_logits(self) -> int:
        """Rows times classes."""
        return len(self.rows) * (self.columns.stop - self.columns.start)


@dataclass(frozen=True)
class LinearHead:
    """``z = softcap(scale (h W^T + b))`` with ``softcap(x) = c tanh(x / c)``.

    Attributes:
        weight: W (V, D), one row per class.
        bias: b (V,), or None.
        scale: factor on the logits.
        softcap: the bound c on their size, or None.
    """

    weight: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None

    def logits(self, hidden: Tensor, columns: slice, out: Tensor) -> Tensor:
        """Logits of the classes ``columns`` for ``hidden`` (n, D), written over the start of the flat ``out``."""
        weight = self.weight[columns]
        z = out[: len(hidden) * len(weight)].view(len(hidden), len(weight))
        if self.bias is None:
            torch.mm(hidden, weight.t(), out=z)
        else:
            torch.addmm(self.bias[columns], hidden, weight.t(), out=z)
        if self.scale != 1:
            z.mul_(self.scale)
        if self.softcap is not None:
            z.div_(self.softcap).tanh_().mul_(self.softcap)
        return z

    def chain(self, values: Tensor, z: Tensor) -> Tensor:
        """Derivatives by the logits ``z`` turned into derivatives by ``h W^T + b``, elementwise."""
        if self.softcap is not None:
            values = values * (1 - (z / self.softcap).square())
        return values if self.scale == 1 else values * self.scale


class SparseEntries(NamedTuple):
    """A sparse (N, V) matrix as entries in any order; repeated places add up.

    Attributes:
        row: (M,) int64.
        column: (M,) int64.
        value: (M,) float32 or float64.
    """

    row: Tensor
    column: Tensor
    value: Tensor

    @staticmethod
    def joined(parts: list[SparseEntries]) -> SparseEntries:
        """The sum of several matrices (at least one)."""
        row, column, value = (torch.cat(field) for field in zip(*parts))
        return SparseEntries(row, column, value)

    def transposed(self) -> SparseEntries:
        """The same matrix with rows and columns exchanged."""
        return SparseEntries(self.column, self.row, self.value)


def worth_listing(counts: Tensor, crowded: Tensor, num_classes: int) -> Tensor:
    """The rows (n,), bool, whose weights are so few that gathering beats the dense products.

    Args:
        counts: (n,) weights of each row that are not zero.
        crowded: (n,) bool, rows that have too many to be counted.
        num_classes: logits of a row.

    Returns:
        All rows that are not crowded, if they have few weights on average; else those of them that have few.
    """
    kept = ~crowded
    if int(counts[kept].sum()) * _DENSE_BELOW <= int(kept.sum()) * num_classes:
        return kept
    return kept & (counts * _DENSE_BELOW <= num_classes)


def index_of(rows: Tensor) -> Tensor | slice:
    """An index for the ``rows`` (n,), bool: the mask, which copies what it picks, or a slice where it picks all."""
    return slice(None) if bool(rows.all()) else rows


def gather_sum(matrix: SparseEntries, table: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
    """The product ``matrix @ table`` (num_rows, D), summed in the dtype of the matrix's values.

    Args:
        matrix: entries of a (num_rows, K) matrix.
        table: (K, D), any floating-point dtype; only the rows that the matrix touches are upcast.
        num_rows: rows of the result.
        dtype: of the result.

    Cost: a sort of the entries and one weighted row of ``table`` per entry.
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
        # Little more than one number per row is held beside the result while it is written: int32 halves it.
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


class TiledLoss(NamedTuple):
    """The result of one pass over the logits.

    Attributes:
        loss: (N,) ``L(z, e_y)``.
        gold: (N,) ``z_y``.
        support: the weights p times the head's own derivative, of all rows but those of the dense tiles.
        dense: tiles of rows with too many weights to be listed; the backward pass computes their logits again.
    """

    loss: Tensor
    gold: Tensor
    support: list[SparseEntries]
    dense: list[Tile]


class TiledMap(NamedTuple):
    """A map as fused losses compute it.

    Attributes:
        forward: ``forward(hidden (N, D), y (N,), head, chunk_size) -> TiledLoss``.
        weights: ``weights(z (n, m), factor (n,)) -> (n, m)``: the weights p of a tile's logits times a factor per row.
        product: a sparse matrix times one side of the layer, with the arguments of ``gather_sum``.
    """

    forward: Callable[[Tensor, Tensor, LinearHead, int | None], TiledLoss]
    weights: Callable[[Tensor, Tensor], Tensor]
    product: Callable[[SparseEntries, Tensor, int, torch.dtype], Tensor] = gather_sum
