"""entmax and alpha-ReLU of a linear layer's output by the Triton kernels, a chunk of rows at a time.

Rows are solved on the tile that holds their logits, and their supports are listed. The host waits for the device once,
after all chunks are launched, for the number of entries that each of them listed.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...functional.newton import exponent_of
from ...kernels import Listing, triton_list_support, triton_loss_gradients, triton_multiply, triton_solve
from .._alpha_relu_support import relu_loss
from ._tiles import TILE, LinearHead, SparseEntries, Tile, TiledLoss, TiledMap

# Gathering is as fast as the dense products, by their counted bytes and operations, at one weight in this many.
_LISTED = 185
# Room for entries per row, at most: twelve bytes each, as much as three thousand half-precision hidden states.
_MOST_LISTED = 512
# Rows that fill a large GPU's matrix units.
_GPU_ROWS = 512


def triton_tiles(alpha: float, tau: float | None = None) -> TiledMap:
    """entmax, or alpha-ReLU where tau is given, for fused losses where ``kernels.chosen`` returned ``"triton"``."""
    return TiledMap(partial(_forward, alpha=alpha, tau=tau), partial(_weights, alpha=alpha, tau=tau), _product)


# The number of listed entries depends on values, so torch.compile keeps all of this out of its graphs.
@torch.compiler.disable
def _product(matrix: SparseEntries, table: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
    return triton_multiply(*matrix, table, num_rows, dtype)


@torch.compiler.disable
def _weights(z: Tensor, factor: Tensor, alpha: float, tau: float | None) -> Tensor:
    exponent = exponent_of(alpha)
    return triton_loss_gradients(z, *triton_solve(z, alpha, exponent, tau), factor, None, alpha, exponent)


@torch.compiler.disable
def _forward(
    hidden: Tensor, y: Tensor, head: LinearHead, chunk_size: int | None, alpha: float, tau: float | None
) -> TiledLoss:
    num_rows, num_classes = len(hidden), len(head.weight)
    # Logits of up to D / 4 rows take less memory than the gradient of W will.
    height = chunk_size or max(TILE // num_classes, min(_GPU_ROWS, hidden.shape[1] // 4), 1)
    height = min(height, num_rows)
    chunks = [slice(start, min(start + height, num_rows)) for start in range(0, num_rows, height)]
    room = max(1, min(num_classes // _LISTED, _MOST_LISTED))
    listing = Listing.empty(num_rows * room, len(chunks), hidden.device)
    buffer = hidden.new_empty(height * num_classes)
    losses, golds = [], []
    for number, rows in enumerate(chunks):
        z = head.logits(hidden[rows], slice(0, num_classes), buffer)
        gold = z.gather(1, y[rows, None])[:, 0].float()
        conjugate, top = triton_list_support(
            z, listing, number, rows.start, len(z) * room, alpha, exponent_of(alpha), tau, head.softcap, head.scale
        )
        golds.append(gold)
        losses.append(conjugate - (gold - top) if tau is None else relu_loss(conjugate, gold, alpha, tau))
    sizes = listing.sizes.tolist()
    num_entries = sum(size for size in sizes if size > 0)
    support = SparseEntries(*(field[:num_entries] for field in listing[:3]))
    every = torch.arange(num_rows, device=hidden.device)
    dense = [Tile(every[rows], slice(0, num_classes)) for rows, size in zip(chunks, sizes) if size < 0]
    return TiledLoss(torch.cat(losses), torch.cat(golds), [support], dense)
