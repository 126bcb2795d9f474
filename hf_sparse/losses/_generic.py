"""The Fenchel-Young loss of any map from its two halves: the weights it gives and its regularizer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..functional import SparseMap
from ..functional.rows import upcast


def _one_hot(y: Tensor, p: Tensor) -> Tensor:
    """Targets as distributions, for the regularizer; all one-hots have the same value of it, so one row will do."""
    return y if y.is_floating_point() else torch.zeros_like(p[:1]).index_fill(-1, torch.zeros_like(y[:1]), 1.0)


class _FenchelYoungRows(torch.autograd.Function):
    """``<z, p> - Omega(p) + Omega(y) - <z, y>`` for each row; by Danskin's theorem only the explicit z matters.

    The derivative in z is ``p - y``, and in a setting of the map ``d Omega(y) - d Omega(p)`` at fixed p.
    """

    @staticmethod
    def forward(ctx, z: Tensor, y: Tensor, sparse_map: SparseMap, names: tuple[str, ...], *values: Any) -> Tensor:
        settings = dict(zip(names, values))
        p = sparse_map.function(z, **settings)
        ctx.sparse_map, ctx.names = sparse_map, names
        ctx.plain = {name: value for name, value in settings.items() if not torch.is_tensor(value)}
        ctx.save_for_backward(z, y, p, *(value for value in values if torch.is_tensor(value)))
        if sparse_map.shift_invariant:
            # (p - y) sums to zero, so any constant may be taken off z: with the maximum nothing large cancels.
            top = z.amax(-1, keepdim=True)
            z = z - top.masked_fill(top.isinf(), 0.0)
        soft = y.is_floating_point()
        gold = torch.where(y > 0, z * y, 0.0).sum(-1) if soft else z.gather(-1, y[:, None])[:, 0]
        regularizer = partial(sparse_map.loss_regularizer(), **settings)
        return torch.where(p > 0, z * p, p).sum(-1) - regularizer(p) + regularizer(_one_hot(y, p)) - gold

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, y, p, *tensors = ctx.saved_tensors
        again = torch.is_grad_enabled()  # a second derivative is wanted: rebuild p with its own graph
        names = [name for name in ctx.names if name not in ctx.plain]
        if again:
            p = ctx.sparse_map.function(z, **ctx.plain, **dict(zip(names, tensors)))
        residual = p - y if y.is_floating_point() else p.scatter_add(-1, y[:, None], -torch.ones_like(p[:, :1]))
        of_z = torch.where(grad[:, None] == 0, 0.0, grad[:, None] * residual)
        if not tensors:
            return of_z, None, None, None, *(None for _ in ctx.names)
        with torch.enable_grad():
            # Aliases keep the derivative to where the setting appears in Omega, not in p.
            explicit = {name: tensor.view_as(tensor) for name, tensor in zip(names, tensors)}
            regularizer = partial(ctx.sparse_map.loss_regularizer(), **ctx.plain, **explicit)
            gap = regularizer(_one_hot(y, p)) - regularizer(p)
        wanted = {name: tensor for name, tensor in explicit.items() if tensor.requires_grad}
        found = torch.autograd.grad(gap, tuple(wanted.values()), grad, create_graph=again) if wanted else ()
        by_name = dict(zip(wanted, found))
        return of_z, None, None, None, *(by_name.get(name) for name in ctx.names)


def dense_rows_loss(z: Tensor, y: Tensor, sparse_map: SparseMap, settings: Mapping[str, Any]) -> Tensor:
    """``L(z, y) = Omega*(z) + Omega(y) - <z, y>`` row by row.

    Args:
        z: scores (N, V), any floating-point dtype.
        y: classes (N,), int64, or distributions (N, V).
        sparse_map: the map, z -> p.
        settings: all of its settings; those that are tensors get their gradients.

    Returns:
        Losses (N,), float32 or float64.

    Cost: one evaluation of the map and three passes.
    """
    return _FenchelYoungRows.apply(upcast(z), y, sparse_map, tuple(settings), *settings.values())
