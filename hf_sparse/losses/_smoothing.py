"""Label smoothing's share of the loss of class targets."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..functional.registry import SparseMap
from ..functional.rows import accumulation_dtype, by_chunks, is_transformed, row_by_row, upcast
from ..tracing import in_graph
from ._targets import MapSettings, smoothed_one_hot


class _Spread(torch.autograd.Function):
    """``z_y - mean z`` of each row; its gradient is one write."""

    @staticmethod
    def forward(ctx, z: Tensor, y: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = z.shape, z.dtype
        ctx.save_for_backward(y)
        if row_by_row(z):
            gold = upcast(z.gather(-1, y[:, None]))
            return by_chunks(_write_spread, z, gold, out=z.new_empty(len(z), dtype=accumulation_dtype(z)))
        return _spread(z, y)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        grad, share = grad[:, None], 1 / ctx.shape[-1]
        of_z = (grad * -share).to(ctx.dtype).expand(ctx.shape)
        return of_z.scatter(-1, y[:, None], (grad * (1 - share)).to(ctx.dtype)), None


def _write_spread(z: Tensor, gold: Tensor, out: Tensor) -> None:
    torch.mean(gold - z, -1, out=out)


def _spread(z: Tensor, y: Tensor) -> Tensor:
    # Subtracted before anything is summed, so that a large offset cancels.
    z = upcast(z)
    return (z.gather(-1, y[:, None]) - z).mean(-1)


def smoothing_share(z: Tensor, y: Tensor, eps: float, sparse_map: SparseMap, settings: MapSettings) -> Tensor:
    """``eps (z_y - mean z) + Omega(smoothed y) - Omega(y)`` of each row (N,), float32 or float64.

    Args:
        z: scores (N, V), any floating-point dtype.
        y: classes (N,), int64.
        eps: in [0, 1]; smoothed y is ``(1 - eps) y + eps / V``.
        sparse_map: whose regularizer Omega is.
        settings: all of the map's settings.

    Source: Peters and Martins 2021, see ``fenchel_young_loss``.
    """
    spread = _spread(z, y) if in_graph() or is_transformed(z, y) else _Spread.apply(z, y)
    regularizer = partial(sparse_map.loss_regularizer(), **settings)
    one_hot, smoothed = smoothed_one_hot(z.shape[1], eps, spread.dtype, z.device)
    return eps * spread + regularizer(smoothed) - regularizer(one_hot)
