"""alpha-entmax of a linear layer's output, a chunk of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ...functional import entmax
from ...functional.candidates import CANDIDATES_FROM
from ...functional.negentropy import tsallis_negentropy
from ...functional.rows import accumulation_dtype, upcast
from ...kernels import Candidates
from .._dispatch import row_losses
from .._entmax_support import entmax_row_supports
from ._screen import PROBED_ROWS, RowScreen, may_be_screened
from ._tiles import TILE, LinearHead, SparseEntries, Tile, TiledLoss, TiledMap, index_of, worth_listing

# Rows that multiply at full speed: at D = 512 and V = 50,000, 128 rows at a time take a fifth longer, 64 two thirds.
_FAST_ROWS = 256


def entmax_tiles(alpha: float, impl: str) -> TiledMap:
    """alpha-entmax for fused losses, computed by ``impl``, ``"cpp"`` or ``"torch"``."""
    return TiledMap(partial(_forward, alpha=alpha, impl=impl), partial(_weights, alpha=alpha, impl=impl))


def _weights(z: Tensor, factor: Tensor, alpha: float, impl: str) -> Tensor:
    return entmax(upcast(z), alpha, impl=impl) * factor[:, None]


def _forward(
    hidden: Tensor, y: Tensor, head: LinearHead, chunk_size: int | None, alpha: float, impl: str
) -> TiledLoss:
    """Chunks of rows with all classes, since an entmax threshold needs the whole row."""
    num_rows, num_classes = len(hidden), len(head.weight)
    # Few rows multiply slowly. Logits of up to D / 4 rows take less memory than the gradient of W will.
    chunk_size = chunk_size or max(TILE // num_classes, min(_FAST_ROWS, hidden.shape[1] // 4), 1)
    chunk_size = min(chunk_size, num_rows)
    parts: list[_Part] = []
    whole = _Whole(y, head, hidden.new_empty(chunk_size * num_classes), alpha, impl)
    start, screen = 0, None
    if impl == "cpp" and whole.listed and may_be_screened(head, hidden):
        start = min(PROBED_ROWS, chunk_size)
        parts += whole.parts(hidden, slice(0, start))
        if not any(len(part.dense) for part in parts):
            screen = RowScreen.of(head, sum(len(part.support.row) for part in parts) / start, alpha)
    for begin in range(start, num_rows, chunk_size):
        rows = slice(begin, min(begin + chunk_size, num_rows))
        found = None if screen is None else screen.candidates(hidden[rows])
        if screen is None or found is None:
            screen = None  # its rows have many entries; so will the others
            parts += whole.parts(hidden, rows)
        else:
            parts.append(_screened_part(screen, found, hidden[rows], y[rows], begin))
    losses, golds, dense = (torch.cat([getattr(part, name) for part in parts]) for name in ("loss", "gold", "dense"))
    tiles = [Tile(rows, slice(0, num_classes)) for rows in dense.split(chunk_size) if len(rows) > 0]
    return TiledLoss(losses, golds, [part.support for part in parts], tiles)


class _Part(NamedTuple):
    """The losses of some rows, the supports of most, and the rows (int64) of a dense tile; see ``TiledLoss``."""

    loss: Tensor
    gold: Tensor
    support: SparseEntries
    dense: Tensor


class _Whole(NamedTuple):
    """Rows whose scores are all computed.

    Attributes:
        y: the classes of all rows.
        head: the layer.
        buffer: room for the scores.
        alpha: of entmax.
        impl: how rows are solved.
    """

    y: Tensor
    head: LinearHead
    buffer: Tensor
    alpha: float
    impl: str

    @property
    def listed(self) -> bool:
        """Whether supports are searched for."""
        return len(self.head.weight) >= CANDIDATES_FROM and 1 < self.alpha <= 2

    def parts(self, hidden: Tensor, rows: slice) -> Iterator[_Part]:
        """The parts of some rows of ``hidden`` (N, D)."""
        num_classes = len(self.head.weight)
        chunk = self.head.logits(hidden[rows], slice(0, num_classes), self.buffer)
        # The memory to solve a row grows with V as its logits do: solve as many rows at a time as make one tile.
        num_solved = max(TILE // num_classes, 1)
        for begin, z in zip(range(rows.start, rows.stop, num_solved), chunk.split(num_solved)):
            yield self._part(z, begin)

    def _part(self, z: Tensor, begin: int) -> _Part:
        y = self.y[begin : begin + len(z)]
        gold = z.gather(1, y[:, None])[:, 0]
        own = gold.to(accumulation_dtype(z))
        every = torch.arange(begin, begin + len(z), device=z.device)
        if not self.listed:
            nothing = SparseEntries(every[:0], every[:0], own[:0])
            return _Part(self._dense_losses(z, y), own, nothing, every)
        columns, p, top, conjugate, crowded, solution = entmax_row_supports(z, self.alpha, self.impl)
        top = top.masked_fill(top == -torch.inf, 0.0)[:, 0]
        loss = (conjugate - (gold.to(p.dtype) - top)).to(own.dtype)
        if solution is None and bool(crowded.any()):
            crowd = index_of(crowded)
            loss[crowd] = self._dense_losses(z[crowd], y[crowd])
        listed = worth_listing((p != 0).sum(-1), crowded, z.shape[1])
        row, place = ((p != 0) & listed[:, None]).nonzero(as_tuple=True)
        column = columns[row, place]
        value = self.head.chain(p[row, place], z[row, column])
        return _Part(loss, own, SparseEntries(row + begin, column, value.to(own.dtype)), every[~listed])

    def _dense_losses(self, z: Tensor, y: Tensor) -> Tensor:
        return row_losses(z, y, torch.ones_like(y, dtype=torch.bool), "entmax", {"alpha": self.alpha}, self.impl)


def _screened_part(screen: RowScreen, found: Candidates, hidden: Tensor, y: Tensor, begin: int) -> _Part:
    z = found.scores.double()
    top = z.amax(-1)
    p = entmax(z, screen.alpha, impl="torch")
    # Omega*(z) - max z; an error of the threshold enters only squared.
    conjugate = torch.where(p > 0, p * (z - top[:, None]), 0.0).sum(-1) - tsallis_negentropy(p, screen.alpha)
    gold = screen.golds(hidden, y)
    row, place = (p != 0).nonzero(as_tuple=True)
    value = screen.head.chain(p[row, place], z[row, place])
    entries = SparseEntries(row + begin, found.columns[row, place], value.float())
    return _Part((conjugate - (gold - top)).float(), gold.float(), entries, row[:0])
