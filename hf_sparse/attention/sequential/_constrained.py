"""Attention under a credit: earlier queries spend the credit of the keys, and what is left bounds the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...functional import UpperBounds
from ...functional.bounds import MISSING_MASS
from ...functional.rows import upcast
from ...tracing import in_graph


@torch.compiler.disable  # one step per query, and each reads values, which breaks the graph
def constrained_attention(
    bounds: UpperBounds,
    z: Tensor,
    credit: Tensor,
    exhaustion: float | Tensor = 0.0,
    *,
    shared: bool = False,
    detach: bool = False,
    spending: Tensor | None = None,
    first_step: int = 0,
) -> Tensor:
    """``p_t = map(z_t + c u_t; u_t)`` with ``u_1 = credit`` and ``u_{t+1} = u_t - p_t``, for every query t in turn.

    Args:
        bounds: the map's parts, ``get_map("csparsemax").bounds``.
        z: scores (batch, heads, queries, keys), any floating-point dtype; ``-inf`` masks an entry.
        credit: attention each key may still receive, in queries, broadcastable to (batch, heads, keys), or to
            (batch, 1, keys) if shared; ``inf`` for no bound. Differentiable.
        exhaustion: c, at least 0; a number, or one per head (heads, 1), without a gradient. Not applied to keys of
            infinite credit.
        shared: whether all heads draw on one credit, which then falls by the mean of their weights.
        detach: whether to drop the gradient through the bounds, that is, through earlier weights.
        spending: (batch, queries) boolean, False for queries that are padding and spend nothing; None for no padding.
        first_step: position of the first query, for error messages.

    Returns:
        Weights, shape and dtype of ``z``, computed in float32 (float64 for float64). A fully masked row gives zeros.
        Where every weight of a row is 0 or at its bound, the gradient is restricted to directions that keep the mass.

    Raises:
        ValueError: the credit of the keys that a query sees sums to less than 1.
        NotImplementedError: torch exports or traces, and would keep the steps that the example called for.

    Source: Malaviya et al. 2018, Eqs. 5 and 6, with the exhaustion strategy of Section 4.
    Cost: one call of the map per query; for the backward pass, the weights and one byte for each. Where no bound
    binds and c is 0, one call of the map without bounds.

    >>> from hf_sparse.functional import get_map
    >>> z = torch.tensor([[1.2, 0.8, -0.2], [0.7, 0.9, 0.1], [-0.2, 0.2, 0.9]])  # Figure 1 of the paper
    >>> constrained_attention(get_map("csparsemax").bounds, z[None, None], torch.ones(3))[0, 0].round(decimals=4)
    tensor([[0.7000, 0.3000, 0.0000],
            [0.3000, 0.7000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    if in_graph():
        raise NotImplementedError(
            "attention with bounds decides by its weights which steps to take, and no exported or traced graph does; "
            "pass attn=None, or a map without bounds"
        )
    x = upcast(z)
    num_rows, num_heads, num_queries, num_keys = x.shape
    credit = credit.to(x.dtype).expand(num_rows, 1 if shared else num_heads, num_keys)
    spends = torch.ones(1, 1, num_queries, 1, dtype=x.dtype, device=x.device)
    if spending is not None:
        spends = spending.to(x.dtype)[:, None, :, None]
    free: list[Tensor] = []
    if num_queries > 1 and not torch.is_tensor(exhaustion) and exhaustion == 0:
        # An unbounded solution that satisfies the bounds is the bounded one, and then no bound has a gradient.
        p = bounds.unbounded(x)
        num_free = _num_free(p.detach(), credit.detach(), spends, shared)
        if num_free == num_queries:
            return p.to(z.dtype)
        if num_free:
            free = [bounds.unbounded(x[:, :, :num_free])]  # recomputed, so that the graph keeps these steps only
            credit = credit - (_spent(free[0], shared) * spends[:, :, :num_free]).sum(2)
        x, spends, first_step = x[:, :, num_free:], spends[:, :, num_free:], first_step + num_free
    p = _QueryByQuery.apply(x, credit, exhaustion, spends, bounds, shared, detach, first_step)
    return torch.cat([*free, p], 2).to(z.dtype)


def _num_free(p: Tensor, credit: Tensor, spends: Tensor, shared: bool) -> int:
    """Number of leading steps whose weights ``p`` fit into the credit."""
    spent = _spent(p, shared) * spends
    fits = (p <= credit[:, :, None] - (spent.cumsum(2) - spent)).transpose(0, 2).flatten(1).all(-1)
    return int(fits.cumprod(0).sum())


def _spent(p: Tensor, shared: bool) -> Tensor:
    """Credit (batch, 1 or heads, ...) that weights (batch, heads, ...) use up."""
    return p.mean(1, keepdim=True) if shared else p


class _QueryByQuery(torch.autograd.Function):
    """Queries in order; the backward pass runs from the last to the first and needs only the weights."""

    @staticmethod
    def forward(
        ctx: Any,  # torch has no type for it
        x: Tensor,
        credit: Tensor,
        exhaustion: float | Tensor,
        spends: Tensor,
        bounds: UpperBounds,
        shared: bool,
        detach: bool,
        first_step: int,
    ) -> Tensor:
        finite = credit.isfinite()
        p, clipped = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
        u, masses = credit.clamp(min=0), []
        masked = x == -torch.inf
        unseeing = masked.all(-1)
        for t in range(x.shape[2]):
            row = x[:, :, t]
            masses.append(u.masked_fill(masked[:, :, t], 0.0).sum(-1).masked_fill(unseeing[:, :, t], 1.0))
            p[:, :, t], clipped[:, :, t] = bounds.rows(_with_exhaustion(row, u, finite, exhaustion), u.expand_as(row))
            u = (u - _spent(p[:, :, t], shared) * spends[:, :, t]).clamp(min=0)
        _check_credit(torch.stack(masses, 2), first_step)
        ctx.save_for_backward(p, clipped, finite, spends)
        ctx.exhaustion, ctx.bounds, ctx.shared, ctx.detach = exhaustion, bounds, shared, detach
        return p

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dp: Tensor) -> tuple[Tensor | None, ...]:
        p, clipped, finite, spends = ctx.saved_tensors
        if ctx.detach:
            return _gradients(dp, p, clipped, ctx.bounds)[0], *[None] * 7
        num_heads = p.shape[1]
        dx, du = torch.empty_like(dp), torch.zeros_like(finite, dtype=dp.dtype)
        for t in reversed(range(p.shape[2])):
            # The bounds of the next query are those of this one less what it spends.
            later = (du / num_heads if ctx.shared else du) * spends[:, :, t]
            dx[:, :, t], own = _gradients(dp[:, :, t] - later, p[:, :, t], clipped[:, :, t], ctx.bounds)
            own = own + (ctx.exhaustion * dx[:, :, t]).masked_fill(~finite, 0.0)
            du = du + (own.sum(1, keepdim=True) if ctx.shared else own)
        return dx, du, *[None] * 6


def _with_exhaustion(row: Tensor, u: Tensor, finite: Tensor, exhaustion: float | Tensor) -> Tensor:
    """The scores plus ``c u`` where the credit left, u, is finite."""
    if not torch.is_tensor(exhaustion) and exhaustion == 0:
        return row
    return row + exhaustion * u.masked_fill(~finite, 0.0)


def _gradients(dp: Tensor, p: Tensor, clipped: Tensor, bounds: UpperBounds) -> tuple[Tensor, Tensor]:
    """Gradients of scores and bounds, from the gradient ``dp`` of the weights."""
    slope = torch.where((p > 0) & ~clipped, bounds.slope(p), 0.0)
    # If no weight lies between its bounds, p = u on the support: the mean runs over the weights at their bound.
    by = torch.where((slope > 0).any(-1, keepdim=True), slope, clipped.to(slope.dtype))
    mean = (by * dp).sum(-1, keepdim=True) / by.sum(-1, keepdim=True).clamp(min=torch.finfo(by.dtype).tiny)
    return slope * (dp - mean), torch.where(clipped, dp - mean, 0.0)


def _check_credit(masses: Tensor, first_step: int) -> None:
    """Raise unless the credit (batch, heads or 1, steps) that each step sees suffices for it."""
    short = masses < 1 - MISSING_MASS
    if not bool(short.any()):
        return
    t, row, head = short.permute(2, 0, 1).nonzero()[0].tolist()
    mass = float(masses[row, head, t])
    of_head = f" in head {head}" if masses.shape[1] > 1 else ""
    raise ValueError(
        f"attention has nothing left for step {first_step + t} of sentence {row} (both counted from 0): the positions "
        f"it sees have a credit{of_head} of {mass:.4g} in all, {1 - mass:.4g} short of the 1 that a step takes; "
        "give a larger fertility, or sink=True"
    )
