"""Fused linear losses by the Triton kernels: rows are solved where their logits lie, and their supports are listed.

The host asks the device for its numbers once, when all chunks are on their way: which of them were listed, and how
many entries there are.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...functional.newton import exponent_of
from ...kernels import triton_list_support, triton_listing, triton_loss_gradients, triton_multiply, triton_solve
from .._alpha_relu_support import relu_loss
from ._head import LinearHead
from ._rows import TILE, LinearLoss, Tile, TiledLoss
from ._support import SupportEntries

# Where gathering is as fast as the dense products, by their counted bytes and operations: one weight in so many.
_LISTED = 185
# Entries a row there is room for at most: twelve bytes each, like three thousand half-precision hidden states.
_MOST = 512
# Rows that fill a large GPU's matrix units.
_FULL_SPEED = 512


def solved_linear_loss(alpha: float, tau: float | None = None) -> LinearLoss:
    """The loss of entmax, or of alpha-ReLU where tau is given, where ``kernels.chosen`` says ``"triton"``."""
    return LinearLoss(partial(_forward, alpha=alpha, tau=tau), partial(_slopes, alpha=alpha, tau=tau), _product)


# What is listed has no size that a compiler could know: all of this stays out of its graphs.
@torch.compiler.disable
def _product(matrix: SupportEntries, table: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
    return triton_multiply(*matrix, table, num_rows, dtype)


@torch.compiler.disable
def _slopes(z: Tensor, grad: Tensor, impl: str, alpha: float, tau: float | None) -> Tensor:
    exponent = exponent_of(alpha)
    return triton_loss_gradients(z, triton_solve(z, alpha, exponent, tau), grad, None, alpha, exponent)


@torch.compiler.disable
def _forward(
    hidden: Tensor, y: Tensor, head: LinearHead, impl: str, chunk_size: int | None, alpha: float, tau: float | None
) -> TiledLoss:
    num_rows, num_classes = len(hidden), len(head.weight)
    # Up to a quarter of D rows, their logits take less than the gradient of W will.
    height = chunk_size or max(TILE // num_classes, min(_FULL_SPEED, hidden.shape[1] // 4), 1)
    height = min(height, num_rows)
    tiles = [
        Tile(slice(start, min(start + height, num_rows)), slice(0, num_classes))
        for start in range(0, num_rows, height)
    ]
    a_row = max(1, min(num_classes // _LISTED, _MOST))
    listing = triton_listing(num_rows * a_row, len(tiles), hidden.device)
    buffer = hidden.new_empty(height * num_classes)
    losses, golds = [], []
    for number, tile in enumerate(tiles):
        rows = tile.rows
        z = head.logits(hidden[rows], tile.columns, buffer)
        gold = z.gather(1, y[rows, None])[:, 0].float()
        conjugate, top = triton_list_support(
            z, listing, number, rows.start, len(z) * a_row, alpha, exponent_of(alpha), tau, head.softcap, head.scale
        )
        golds.append(gold)
        losses.append(conjugate - (gold - top) if tau is None else relu_loss(conjugate, gold, alpha, tau))
    sizes = listing.sizes.tolist()
    num_entries = sum(size for size in sizes if size > 0)
    support = SupportEntries(*(field[:num_entries] for field in listing[:3]))
    dense = [tile for tile, size in zip(tiles, sizes) if size < 0]
    return TiledLoss(torch.cat(losses), torch.cat(golds), [support], dense)
