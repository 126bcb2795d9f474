"""The Fenchel-Young loss of any map, from its weights and its regularizer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from ..functional import SparseMap
from ..functional.rows import upcast
from ._row_terms import score_gradient, target_scores
from ._targets import MapSettings


def _distributions(y: Tensor, p: Tensor) -> Tensor:
    """Targets for the regularizer: distributions (N, V), or one one-hot row, since Omega is the same for all."""
    return y if y.is_floating_point() else torch.zeros_like(p[:1]).index_fill(-1, torch.zeros_like(y[:1]), 1.0)


def _losses(z: Tensor, y: Tensor, p: Tensor, sparse_map: SparseMap, settings: MapSettings) -> Tensor:
    """``<z, p> - Omega(p) + Omega(y) - <z, y>`` of each row (N,)."""
    top = z.detach().amax(-1, keepdim=True)
    # Where (p - y) sums to zero, z may be shifted by any constant: less its maximum, nothing large cancels.
    top = top.masked_fill(top.isinf(), 0.0) if sparse_map.shift_invariant else torch.zeros_like(top)
    regularizer = partial(sparse_map.loss_regularizer(), **settings)
    omegas = regularizer(_distributions(y, p)) - regularizer(p)
    return target_scores(z, p, top) + omegas - target_scores(z, y, top)


class _GenericLoss(torch.autograd.Function):
    """``<z, p> - Omega(p) + Omega(y) - <z, y>`` per row; by Danskin's theorem only the explicit z matters.

    The derivative in z is ``p - y``; in a setting of the map it is ``d Omega(y) - d Omega(p)`` at fixed p.
    """

    @staticmethod
    def forward(
        ctx, z: Tensor, y: Tensor, sparse_map: SparseMap, names: tuple[str, ...], *values: float | Tensor
    ) -> Tensor:
        settings = dict(zip(names, values))
        p = sparse_map.function(z, **settings)
        ctx.sparse_map, ctx.names = sparse_map, names
        ctx.numbers = {name: value for name, value in settings.items() if not torch.is_tensor(value)}
        ctx.save_for_backward(z, y, p, *(value for value in values if torch.is_tensor(value)))
        return _losses(z, y, p, sparse_map, settings)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, y, p, *tensors = ctx.saved_tensors
        learned = dict(zip((name for name in ctx.names if name not in ctx.numbers), tensors))
        if torch.is_grad_enabled():  # a second derivative is wanted: rebuild p with its own graph
            p = ctx.sparse_map.function(z, **ctx.numbers, **learned)
        of_settings = _setting_gradients(ctx.sparse_map, ctx.numbers, learned, p, y, grad)
        return score_gradient(p, y, grad), None, None, None, *(of_settings.get(name) for name in ctx.names)


def _setting_gradients(
    sparse_map: SparseMap,
    numbers: Mapping[str, float],
    learned: Mapping[str, Tensor],
    p: Tensor,
    y: Tensor,
    grad: Tensor,
) -> dict[str, Tensor]:
    """``grad * (d Omega(y) - d Omega(p))`` at fixed p, by name, of the tensor settings that require it."""
    if not any(tensor.requires_grad for tensor in learned.values()):
        return {}
    with torch.enable_grad():
        # Aliases keep the derivative to where the setting appears in Omega, not in p.
        explicit = {name: tensor.view_as(tensor) for name, tensor in learned.items()}
        regularizer = partial(sparse_map.loss_regularizer(), **numbers, **explicit)
        gap = regularizer(_distributions(y, p)) - regularizer(p)
    wanted = {name: tensor for name, tensor in explicit.items() if tensor.requires_grad}
    again = torch.is_grad_enabled()
    return dict(zip(wanted, torch.autograd.grad(gap, tuple(wanted.values()), grad, create_graph=again)))


def generic_rows_loss(z: Tensor, y: Tensor, sparse_map: SparseMap, settings: MapSettings) -> Tensor:
    """``L(z, y) = Omega*(z) + Omega(y) - <z, y>`` per row.

    Args:
        z: scores (N, V), any floating-point dtype.
        y: classes (N,), int64, or distributions (N, V).
        sparse_map: the map, z -> p.
        settings: all of its settings; tensors among them get their gradients.

    Returns:
        Losses (N,), float32 or float64.

    Cost: one evaluation of the map and three passes.
    """
    return _GenericLoss.apply(upcast(z), y, sparse_map, tuple(settings), *settings.values())


def transformable_rows_loss(z: Tensor, y: Tensor, sparse_map: SparseMap, settings: MapSettings) -> Tensor:
    """``generic_rows_loss`` without a gradient of its own, for ``torch.func``: that of the formula.

    It goes through p, too, and adds nothing there: ``z - d Omega(p)`` is one number on the support, which the
    derivative of p takes to 0.
    """
    z = upcast(z)
    return _losses(z, y, sparse_map.function(z, **settings), sparse_map, settings)
