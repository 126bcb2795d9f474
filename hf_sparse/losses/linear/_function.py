"""A linear layer and its Fenchel-Young loss as one differentiable step that never holds a whole batch's logits.

The derivative of the loss by the logits is ``p - y`` and p is sparse, so both gradients of the linear layer are sums
over a few rows of the other side: two of the three large matrix products of training a dense head are never done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...functional.rows import accumulation_dtype
from ._tiles import LinearHead, SparseEntries, Tile, TiledMap


class _Gradients(NamedTuple):
    """Gradients of the layer, each None where it is not wanted."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    def to(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        hidden, weight, bias = (None if gradient is None else gradient.to(dtype) for gradient in self)
        return hidden, weight, bias


def refuse_second_derivative() -> None:
    """Called in a backward pass.

    Raises:
        RuntimeError: it is to be differentiated itself.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "fused linear losses have no second derivative (create_graph=True); use the loss of the logits"
        )


class _FusedRows(torch.autograd.Function):
    """The losses of rows, with label smoothing ``eps`` but without its constant."""

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
        tiled_map: TiledMap,
        chunk_size: int | None,
    ) -> Tensor:
        head = LinearHead(weight, bias, scale, softcap)
        tiled = tiled_map.forward(hidden, y, head, chunk_size)
        loss = tiled.loss
        if eps > 0:
            center = weight.mean(0, dtype=loss.dtype)
            mean = (hidden.to(loss.dtype) @ center + (0 if bias is None else bias.mean(dtype=loss.dtype))) * scale
            loss = loss + eps * (tiled.gold - mean)
        ctx.scale, ctx.softcap, ctx.eps, ctx.tiled_map, ctx.dense = scale, softcap, eps, tiled_map, tiled.dense
        gold_slope = head.chain(torch.full_like(tiled.gold, eps - 1), tiled.gold)
        target = SparseEntries(torch.arange(len(y), device=y.device), y, gold_slope)
        ctx.save_for_backward(hidden, weight, bias, *SparseEntries.joined([*tiled.support, target]))
        return loss

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        hidden, weight, bias, *listed = ctx.saved_tensors
        # Where the dense tiles or the smoothing add to the listed part, they add in full precision.
        dtype = grad.dtype if ctx.dense or ctx.eps > 0 else hidden.dtype
        entries = SparseEntries(*listed)
        gradients = _listed_part(hidden, weight, entries, grad, ctx.tiled_map, ctx.needs_input_grad[:3], dtype)
        head = LinearHead(weight, bias, ctx.scale, ctx.softcap)
        _add_dense_part(gradients, hidden, head, ctx.dense, grad, ctx.tiled_map)
        if ctx.eps > 0:
            _add_smoothing_part(gradients, hidden, weight, grad, ctx.eps * ctx.scale)
        return *gradients.to(hidden.dtype), *(None for _ in range(6))


def _listed_part(
    hidden: Tensor,
    weight: Tensor,
    entries: SparseEntries,
    grad: Tensor,
    tiled_map: TiledMap,
    wanted: tuple[bool, bool, bool],
    dtype: torch.dtype,
) -> _Gradients:
    """The gradients that flow through the listed weights and the targets."""
    row, column, value = entries
    matrix = SparseEntries(row, column, torch.where(grad[row] == 0, 0.0, value * grad[row]))
    for_hidden, for_weight, for_bias = wanted
    d_hidden = tiled_map.product(matrix, weight, len(hidden), dtype) if for_hidden else None
    d_weight = tiled_map.product(matrix.transposed(), hidden, len(weight), dtype) if for_weight else None
    if not for_bias:
        return _Gradients(d_hidden, d_weight, None)
    sums = grad.new_zeros(len(weight), dtype=torch.float64).index_add_(0, column, matrix.value.double())
    return _Gradients(d_hidden, d_weight, sums.to(grad.dtype))


def _add_dense_part(
    gradients: _Gradients, hidden: Tensor, head: LinearHead, tiles: list[Tile], grad: Tensor, tiled_map: TiledMap
) -> None:
    """Add the gradients that flow through the dense tiles, whose logits are computed again."""
    buffer = hidden.new_empty(max((tile.num_logits for tile in tiles), default=0))
    for tile in tiles:
        h, columns = hidden[tile.rows], tile.columns
        z = head.logits(h, columns, buffer)
        slopes = head.chain(tiled_map.weights(z, grad[tile.rows]), z)
        rounded = slopes.to(hidden.dtype)
        if gradients.hidden is not None:
            gradients.hidden[tile.rows] += rounded @ head.weight[columns]
        if gradients.weight is not None:
            gradients.weight[columns] += rounded.t() @ h
        if gradients.bias is not None:
            gradients.bias[columns] += slopes.sum(0, dtype=grad.dtype)


def _add_smoothing_part(
    gradients: _Gradients, hidden: Tensor, weight: Tensor, grad: Tensor, scaled_eps: float
) -> None:
    """Add label smoothing's share: it lowers the derivative by every logit of a row by the same ``eps / V``."""
    share = grad * -scaled_eps
    if gradients.hidden is not None:
        gradients.hidden.addcmul_(share[:, None], weight.mean(0, dtype=grad.dtype))
    if gradients.weight is not None:
        gradients.weight.add_((share @ hidden.to(grad.dtype)) / len(weight))
    if gradients.bias is not None:
        gradients.bias.add_(share.sum() / len(weight))


# hidden (N, D), weight (V, D), bias (V,) or None, targets (N,), scale, softcap, label smoothing -> losses (N,)
RowLosses = Callable[[Tensor, Tensor, Tensor | None, Tensor, float, float | None, float], Tensor]


def tiled_rows(tiled_map: TiledMap, chunk_size: int | None) -> RowLosses:
    """The losses of rows by a map, ``chunk_size`` as for ``linear_fenchel_young_loss``."""
    return lambda *layer_and_options: _FusedRows.apply(*layer_and_options, tiled_map, chunk_size)


def fused_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor,
    counted: Tensor,
    rows_of: RowLosses,
    *,
    scale: float,
    softcap: float | None,
    label_smoothing: float,
) -> Tensor:
    """``L(z, y)`` of each row, 0 for uncounted rows, whose logits are not computed.

    Args:
        hidden: h (N, D).
        weight: W (V, D), in the dtype of h.
        bias: b (V,) in that dtype, or None.
        y: classes (N,), int64.
        counted: (N,) bool.
        rows_of: the losses of rows that count, as ``tiled_rows`` gives.
        scale: factor on the logits.
        softcap: bound on the logits, or None.
        label_smoothing: in [0, 1]; its constant, ``Omega(smoothed y) - Omega(y)``, is left out.

    Returns:
        Losses (N,), float32 or float64.
    """
    kept = counted.nonzero()[:, 0]
    if len(kept) == 0:
        # Empty sums keep the graph: the gradients are zeros, not None.
        nothing = hidden[:0].sum() + weight[:0].sum() + (0 if bias is None else bias[:0].sum())
        return torch.zeros(len(y), dtype=accumulation_dtype(weight), device=hidden.device) + nothing
    every = len(kept) == len(counted)
    rows = hidden if every else hidden[kept]
    with torch.autocast(weight.device.type, enabled=False):
        loss = rows_of(rows, weight, bias, y[kept], float(scale), softcap, float(label_smoothing))
    return loss if every else torch.zeros(len(y), dtype=loss.dtype, device=loss.device).index_put((kept,), loss)
