"""What the losses of rows (N, V) are made of: the scores at their targets, and the gradient ``p - y``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional import alpha_relu, entmax
from ..functional.negentropy import tsallis_negentropy
from ..functional.rows import by_chunks, is_mapped, is_readable, upcast, writes_rows


def from_conjugate(conjugate: Tensor, z: Tensor, y: Tensor, top: Tensor, alpha: float) -> Tensor:
    """The entmax losses (N,), ``Omega*(z) + Omega(y) - <z, y>``, in the dtype of ``conjugate`` or more.

    Args:
        conjugate: (N,) ``Omega*(z) - top``.
        z: scores (N, V), any floating-point dtype.
        y: classes (N,), int64, or distributions (N, V).
        top: (N, 1) the largest score of the row; 0 for a fully masked row.
        alpha: of the map, at least 1.
    """
    loss = conjugate - target_scores(z, y, top)
    return loss + tsallis_negentropy(y, alpha) if y.is_floating_point() else loss


def target_scores(z: Tensor, y: Tensor, top: Tensor) -> Tensor:
    """``<z - top, y>`` (N,), to which a masked score adds nothing where y is zero; arguments of ``from_conjugate``."""
    if not y.is_floating_point():
        return (z.gather(-1, y[:, None]).to(top.dtype) - top)[:, 0]
    if writes_rows(z, y):
        return by_chunks(_write_target_scores, z, y, top, out=y.new_empty(len(y)))
    return (torch.where(y > 0, z.to(y.dtype) - top, 0.0) * y).sum(-1)


def _write_target_scores(z: Tensor, y: Tensor, top: Tensor, out: Tensor) -> None:
    torch.sum(torch.sub(z, top).to(y.dtype).mul_(y), -1, out=out)
    if bool(out.isnan().any()):  # torch.where, a scalar loop here, takes longer than all else together
        torch.sum(torch.where(y > 0, (z.to(y.dtype) - top) * y, 0.0), -1, out=out)


def score_gradient(p: Tensor, y: Tensor, grad: Tensor) -> Tensor:
    """``grad (p - y)``, the gradient of losses in their scores, with the graph of p.

    Args:
        p: weights (N, V).
        y: classes (N,), int64, or distributions (N, V).
        grad: of the losses (N,); rows where it is 0 may hold anything, and get 0.
    """
    residual = p - y if y.is_floating_point() else p.scatter_add(-1, y[:, None], -torch.ones_like(p[:, :1]))
    return weighted(residual, grad)


def differentiable_gradient(
    z: Tensor, y: Tensor, grad: Tensor, alpha: float, tau: float | None, impl: str = "auto"
) -> Tensor:
    """``score_gradient``, in the dtype of z, from weights that are mapped again: with a graph, for second derivatives.

    Args:
        z: scores (N, V).
        y: as in ``score_gradient``, as is grad.
        grad: of the losses (N,).
        alpha: of entmax or alpha-ReLU.
        tau: the threshold of alpha-ReLU; None for entmax.
        impl: of entmax.
    """
    x = upcast(z)
    if not is_mapped(grad):  # for one gradient, rows of NaN that it leaves out have a map that is differentiable
        x = x.masked_fill((grad == 0)[:, None], 0.0)
    p = entmax(x, alpha, impl=impl) if tau is None else alpha_relu(x, alpha, tau)
    return score_gradient(p, y, grad).to(z.dtype)


def weighted(residual: Tensor, grad: Tensor) -> Tensor:
    """``grad`` times the residuals ``p - y`` (N, V), row by row; see ``score_gradient``."""
    product = grad[:, None] * residual
    skipped = grad == 0
    if product.device.type == "cpu" and is_readable(grad):
        # torch.where takes a scalar loop here, many times as long as the product.
        return product.index_fill(0, skipped.nonzero()[:, 0], 0.0) if bool(skipped.any()) else product
    return torch.where(skipped[:, None], 0.0, product)
