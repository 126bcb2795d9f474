"""alpha-entmax of a linear layer's output, a chunk of rows at a time."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...functional import entmax
from ...functional.candidates import CANDIDATES_FROM
from ...functional.rows import accumulation_dtype, upcast
from .._dispatch import row_losses
from .._entmax_support import entmax_row_supports
from ._tiles import TILE, LinearHead, SparseEntries, Tile, TiledLoss, TiledMap, worth_listing

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
    num_classes = len(head.weight)
    # Few rows multiply slowly. Logits of up to D / 4 rows take less memory than the gradient of W will.
    chunk_size = chunk_size or max(TILE // num_classes, min(_FAST_ROWS, hidden.shape[1] // 4), 1)
    chunk_size = min(chunk_size, len(hidden))
    buffer = hidden.new_empty(chunk_size * num_classes)
    losses, golds, support, dense = [], [], [], []
    listed = num_classes >= CANDIDATES_FROM and 1 < alpha <= 2
    # The memory to solve a row grows with V as its logits do: solve as many rows at a time as make one tile.
    num_solved = max(TILE // num_classes, 1)
    for start in range(0, len(hidden), chunk_size):
        chunk = head.logits(hidden[start : start + chunk_size], slice(0, num_classes), buffer)
        for begin, z in zip(range(start, start + len(chunk), num_solved), chunk.split(num_solved)):
            tile = Tile(slice(begin, begin + len(z)), slice(0, num_classes))
            gold = z.gather(1, y[tile.rows, None])[:, 0]
            golds.append(gold.to(accumulation_dtype(z)))
            solved = entmax_row_supports(z, alpha, impl) if listed else None
            if solved is None or bool(solved.crowded.any()):
                counted = torch.ones_like(gold, dtype=torch.bool)
                losses.append(row_losses(z, y[tile.rows], counted, "entmax", {"alpha": alpha}, impl))
                dense.append(tile)
                continue
            p, top = solved.p, solved.top.masked_fill(solved.top == -torch.inf, 0.0)[:, 0]
            losses.append((solved.conjugate - (gold.to(p.dtype) - top)).to(golds[-1].dtype))
            row, place = (p != 0).nonzero(as_tuple=True)
            if not worth_listing(len(row), z):
                dense.append(tile)
                continue
            column = solved.columns[row, place]
            value = head.chain(p[row, place], z[row, column])
            support.append(SparseEntries(row + begin, column, value.to(golds[-1].dtype)))
    return TiledLoss(torch.cat(losses), torch.cat(golds), support, dense)
