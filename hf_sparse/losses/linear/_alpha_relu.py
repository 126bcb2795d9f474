"""The alpha-ReLU loss of a linear layer's output, streamed over the vocabulary: nothing has to be normalized."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...functional import alpha_relu
from ...functional.candidates import CANDIDATES_FROM
from ...functional.rows import accumulation_dtype, upcast
from ...kernels import chosen
from .._alpha_relu_support import relu_loss, relu_mass, relu_rows
from .._dispatch import checked_settings
from ._function import linear_loss
from ._head import LinearHead
from ._rows import TILE, LinearLoss, Tile, TiledLoss, worth_listing
from ._support import SupportEntries

# Rows that share one pass over W; more would make the tiles too narrow to multiply well.
_ROWS = 8192


def linear_alpha_relu_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    alpha: float,
    tau: float,
    bias: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    impl: str = "auto",
    **options: Any,
) -> Tensor:
    """``alpha_relu_loss(z, y, alpha, tau)`` of ``z = softcap(scale (h W^T + b))``, reading W once.

    Value and gradients are those of the two steps done one after the other; second derivatives are not available.

    Args:
        hidden: h (..., D), any floating-point dtype.
        weight: W (V, D), one row a class.
        target: class indices (...), int64.
        alpha: above 1.
        tau: the threshold of ``alpha_relu``, finite.
        bias: b (V,).
        chunk_size: classes whose logits are held at a time; by default as many as make about sixteen million logits.
            Triton holds rows instead, as ``linear_entmax_loss`` does, and this is their number.
        impl: what finds the supports, as in ``linear_entmax_loss``.
        **options: ``ignore_index``, ``reduction``, ``label_smoothing``, ``num_items``, ``softcap`` and ``scale`` as in
            ``linear_entmax_loss``.

    Returns:
        As ``linear_entmax_loss``.

    Raises:
        ValueError, TypeError, IndexError, RuntimeError: as ``linear_entmax_loss``.

    Source: Tezekbayev et al. 2022, Lemma 1; the separable form in ``alpha_relu_loss``.
    Cost: as ``linear_entmax_loss``; W is read once for up to 8192 rows.

    >>> import torch
    >>> hidden, weight = torch.eye(2), torch.tensor([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    >>> linear_alpha_relu_loss(hidden, weight, torch.tensor([0, 1]), alpha=1.5, tau=0.5)
    tensor(0.)
    """
    settings = checked_settings("alpha_relu", {"alpha": alpha, "tau": tau})
    rows = LinearLoss(partial(_forward, **settings), partial(_slopes, **settings))
    return linear_loss(
        hidden, weight, target, bias, rows, "alpha_relu", settings, chunk_size=chunk_size, impl=impl, **options
    )


def _slopes(z: Tensor, grad: Tensor, impl: str, alpha: float, tau: float) -> Tensor:
    return alpha_relu(upcast(z), alpha, tau) * grad[:, None]


def _forward(
    hidden: Tensor, y: Tensor, head: LinearHead, impl: str, chunk_size: int | None, alpha: float, tau: float
) -> TiledLoss:
    """Blocks of rows, chunks of classes: every tile adds its own part to the losses of its rows."""
    num_rows, num_classes = len(hidden), len(head.weight)
    height = min(num_rows, _ROWS)
    width = min(chunk_size or max(1, TILE // height), num_classes)
    buffer = hidden.new_empty(height * width)
    dtype = accumulation_dtype(hidden)
    mass = hidden.new_zeros(num_rows, dtype=torch.float64)
    gold = hidden.new_zeros(num_rows, dtype=dtype)
    support, dense = [], []
    for start in range(0, num_rows, height):
        rows = slice(start, min(start + height, num_rows))
        for begin in range(0, num_classes, width):
            tile = Tile(rows, slice(begin, min(begin + width, num_classes)))
            z = head.logits(hidden[rows], tile.columns, buffer)
            here = ((y[rows] >= begin) & (y[rows] < tile.columns.stop)).nonzero()[:, 0]
            gold[here + start] = z[here, y[rows][here] - begin].to(dtype)
            found = relu_rows(z, alpha, tau, chosen(impl, z)) if z.shape[1] >= CANDIDATES_FROM else None
            if found is None or bool(found.crowded.any()) or not worth_listing(int(found.p.count_nonzero()), z):
                mass[rows] += relu_mass(z.to(dtype) * (alpha - 1) - tau, alpha).sum(-1)
                dense.append(tile)
                continue
            mass[rows] += found.mass
            row, place = (found.p != 0).nonzero(as_tuple=True)
            column = found.columns[row, place]
            value = head.chain(found.p[row, place], z[row, column])
            support.append(SupportEntries(row + start, column + begin, value))
    return TiledLoss(relu_loss(mass, gold, alpha, tau).to(dtype), gold, support, dense)
