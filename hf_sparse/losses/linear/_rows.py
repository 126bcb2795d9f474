"""A linear layer and its Fenchel-Young loss as one step that never holds the logits of a whole batch.

The derivative of the loss by the logits is ``p - y`` and p is sparse, so both gradients of the linear layer are sums
over a few rows of the other side: two of the three large matrix products of training a dense head are never done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ._head import LinearHead
from ._support import SupportEntries, gather_sum

# Gathering beats the dense products as long as no more than one weight in this many is nonzero (D = 512, 2 cores).
DENSE_BELOW = 128
# Logits held at a time, in entries.
TILE = 1 << 24
# Rows that multiply at full speed: at D = 512 and V = 50,000, 128 rows at a time take a fifth longer, 64 two thirds.
FULL_SPEED = 256


class Tile(NamedTuple):
    """Rows and classes whose logits are computed together."""

    rows: slice
    columns: slice


def worth_listing(num_entries: int, z: Tensor) -> bool:
    """Whether the weights of the logits z have so few nonzeros that gathering beats the dense products."""
    return num_entries * DENSE_BELOW <= z.numel()


class TiledLoss(NamedTuple):
    """What one pass over the logits leaves behind.

    Attributes:
        loss: (N,) ``L(z, e_y)``.
        gold: (N,) ``z_y``.
        support: the weights p times the head's own derivative, by tile, of all tiles but the dense ones.
        dense: tiles whose weights are too many to be listed; their logits are computed again in the backward.
    """

    loss: Tensor
    gold: Tensor
    support: list[SupportEntries]
    dense: list[Tile]


class LinearLoss(NamedTuple):
    """How a map's loss is computed tile by tile.

    Attributes:
        forward: (hidden, y, head, impl, chunk_size) -> TiledLoss.
        slopes: (logits of one tile, a factor for each of its rows, impl) -> the factor times the weights p.
        product: a sparse matrix times one side of the layer, as ``gather_sum``.
    """

    forward: Callable[[Tensor, Tensor, LinearHead, str, int | None], TiledLoss]
    slopes: Callable[[Tensor, Tensor, str], Tensor]
    product: Callable[[SupportEntries, Tensor, int, torch.dtype], Tensor] = gather_sum


class _LinearRows(torch.autograd.Function):
    """The loss of each row, label smoothing ``eps`` included but for a constant."""

    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        y: Tensor,
        scale: float,
        softcap: float | None,
        eps: float,
        linear_loss: LinearLoss,
        impl: str,
        chunk_size: int | None,
    ) -> Tensor:
        head = LinearHead(weight, bias, scale, softcap)
        tiled = linear_loss.forward(hidden, y, head, impl, chunk_size)
        loss = tiled.loss
        if eps > 0:
            center = weight.mean(0, dtype=loss.dtype)
            mean = (hidden.to(loss.dtype) @ center + (0 if bias is None else bias.mean(dtype=loss.dtype))) * scale
            loss = loss + eps * (tiled.gold - mean)
        ctx.scale, ctx.softcap, ctx.eps, ctx.linear_loss, ctx.impl = scale, softcap, eps, linear_loss, impl
        ctx.dense = tiled.dense
        gold_slope = head.chain(torch.full_like(tiled.gold, eps - 1), tiled.gold)
        target = SupportEntries(torch.arange(len(y), device=y.device), y, gold_slope)
        ctx.save_for_backward(hidden, weight, bias, *SupportEntries.joined([*tiled.support, target]))
        return loss

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "fused linear losses have no second derivative (create_graph=True); use the loss of the logits"
            )
        hidden, weight, bias, row, column, value = ctx.saved_tensors
        head = LinearHead(weight, bias, ctx.scale, ctx.softcap)
        num_classes = len(weight)
        matrix = SupportEntries(row, column, torch.where(grad[row] == 0, 0.0, value * grad[row]))
        for_hidden, for_weight, for_bias = ctx.needs_input_grad[:3]
        product, by_class = ctx.linear_loss.product, matrix.transposed()
        # What more is to be added is added in full precision.
        dtype = grad.dtype if ctx.dense or ctx.eps > 0 else hidden.dtype
        d_hidden = product(matrix, weight, len(hidden), dtype) if for_hidden else None
        d_weight = product(by_class, hidden, num_classes, dtype) if for_weight else None
        d_bias = None
        if for_bias:
            sums = grad.new_zeros(num_classes, dtype=torch.float64).index_add_(0, column, matrix.value.double())
            d_bias = sums.to(grad.dtype)
        buffer = hidden.new_empty(max(((t.rows.stop - t.rows.start) * num_classes for t in ctx.dense), default=0))
        for tile in ctx.dense:
            h, columns = hidden[tile.rows], tile.columns
            z = head.logits(h, columns, buffer)
            r = head.chain(ctx.linear_loss.slopes(z, grad[tile.rows], ctx.impl), z)
            half = r.to(hidden.dtype)
            if d_hidden is not None:
                d_hidden[tile.rows] += half @ weight[columns]
            if d_weight is not None:
                d_weight[columns] += half.t() @ h
            if d_bias is not None:
                d_bias[columns] += r.sum(0, dtype=grad.dtype)
        if ctx.eps > 0:  # smoothing takes the same eps / V off every class's derivative
            share = grad * (-ctx.eps * ctx.scale)
            if d_hidden is not None:
                d_hidden.addcmul_(share[:, None], weight.mean(0, dtype=grad.dtype))
            if d_weight is not None:
                d_weight += (share @ hidden.to(grad.dtype)) / num_classes
            if d_bias is not None:
                d_bias += share.sum() / num_classes
        return (
            None if d_hidden is None else d_hidden.to(hidden.dtype),
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(weight.dtype),
            *(None for _ in range(7)),
        )


linear_rows = _LinearRows.apply
