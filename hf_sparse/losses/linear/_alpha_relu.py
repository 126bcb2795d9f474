"""alpha-ReLU of a linear layer's output, streamed over the vocabulary: nothing has to be normalized."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...functional import alpha_relu
from ...functional.candidates import CANDIDATES_FROM
from ...functional.rows import accumulation_dtype, upcast
from .._alpha_relu_support import relu_loss, relu_mass, relu_row_supports
from ._screen import PROBED_ROWS, RowScreen, may_be_screened
from ._tiles import TILE, LinearHead, SparseEntries, Tile, TiledLoss, TiledMap, index_of, worth_listing

# Rows that share one pass over W; more would make the tiles too narrow to multiply well.
_ROWS_PER_PASS = 8192
# Rows whose scores in bfloat16 are held at a time.
_ROWS_OF_A_SCREEN = 256


def alpha_relu_tiles(alpha: float, tau: float, impl: str) -> TiledMap:
    """alpha-ReLU for fused losses, its supports found by ``impl``, ``"cpp"`` or ``"torch"``."""
    return TiledMap(
        partial(_forward, alpha=alpha, tau=tau, impl=impl),
        partial(_weights, alpha=alpha, tau=tau),
    )


def _weights(z: Tensor, factor: Tensor, alpha: float, tau: float) -> Tensor:
    return alpha_relu(upcast(z), alpha, tau) * factor[:, None]


def _forward(
    hidden: Tensor, y: Tensor, head: LinearHead, chunk_size: int | None, alpha: float, tau: float, impl: str
) -> TiledLoss:
    """Blocks of rows by chunks of classes: every tile adds its own part to the losses of its rows."""
    num_rows, num_classes = len(hidden), len(head.weight)
    # A screen holds all classes of some rows: not where the caller has said how many classes may be held.
    if impl == "cpp" and chunk_size is None and num_classes >= CANDIDATES_FROM and may_be_screened(head, hidden):
        screened = _screened(hidden, y, head, alpha, tau)
        if screened is not None:
            return screened
    height = min(num_rows, _ROWS_PER_PASS)
    width = min(chunk_size or max(1, TILE // height), num_classes)
    buffer = hidden.new_empty(height * width)
    dtype = accumulation_dtype(hidden)
    mass = hidden.new_zeros(num_rows, dtype=torch.float64)
    gold = hidden.new_zeros(num_rows, dtype=dtype)
    support, dense = [], []
    for start in range(0, num_rows, height):
        rows = slice(start, min(start + height, num_rows))
        for begin in range(0, num_classes, width):
            columns = slice(begin, min(begin + width, num_classes))
            z = head.logits(hidden[rows], columns, buffer)
            here = ((y[rows] >= begin) & (y[rows] < columns.stop)).nonzero()[:, 0]
            gold[here + start] = z[here, y[rows][here] - begin].to(dtype)
            every = torch.arange(rows.start, rows.stop, device=z.device)
            if z.shape[1] < CANDIDATES_FROM:
                mass[rows] += relu_mass(z, alpha, tau).sum(-1)
                dense.append(Tile(every, columns))
                continue
            found = relu_row_supports(z, alpha, tau, impl)
            if found.solution is None and bool(found.crowded.any()):
                crowd = index_of(found.crowded)
                found.mass[crowd] = relu_mass(z[crowd], alpha, tau).sum(-1).double()
            mass[rows] += found.mass
            listed = worth_listing((found.p != 0).sum(-1), found.crowded, z.shape[1])
            if not bool(listed.all()):
                dense.append(Tile(every[~listed], columns))
            row, place = ((found.p != 0) & listed[:, None]).nonzero(as_tuple=True)
            column = found.columns[row, place]
            value = head.chain(found.p[row, place], z[row, column])
            support.append(SparseEntries(row + start, column + begin, value))
    return TiledLoss(relu_loss(mass, gold, alpha, tau).to(dtype), gold, support, dense)


def _screened(hidden: Tensor, y: Tensor, head: LinearHead, alpha: float, tau: float) -> TiledLoss | None:
    """Runs of rows with all classes, of which few are exact; None where too many can have weight."""
    first = head.logits(hidden[:PROBED_ROWS], slice(None), hidden.new_empty(PROBED_ROWS * len(head.weight)))
    probed = relu_row_supports(first, alpha, tau, "cpp")
    support = float(probed.p.count_nonzero()) / len(first)
    screen = None if bool(probed.crowded.any()) else RowScreen.of(head, support, alpha, tau)
    if screen is None:
        return None
    masses, golds, entries = [], [], []
    for begin in range(0, len(hidden), _ROWS_OF_A_SCREEN):
        rows = slice(begin, begin + _ROWS_OF_A_SCREEN)
        found = screen.candidates(hidden[rows])
        if found is None:
            return None
        golds.append(screen.golds(hidden[rows], y[rows]))
        z = found.scores.double()
        p = alpha_relu(z, alpha, tau)
        masses.append(relu_mass(z, alpha, tau).sum(-1))
        row, place = (p != 0).nonzero(as_tuple=True)
        value = head.chain(p[row, place], z[row, place])
        entries.append(SparseEntries(row + begin, found.columns[row, place], value.float()))
    gold = torch.cat(golds)
    return TiledLoss(relu_loss(torch.cat(masses), gold, alpha, tau).float(), gold.float(), entries, [])
