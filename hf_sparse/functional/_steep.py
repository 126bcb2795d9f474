"""alpha-entmax above alpha = 2, where weights rise from the threshold with an infinite slope.

There ``P = 1 / (alpha - 1)`` is below 1, and a weight ``[x - tau]_+ ^ P`` of .3 may lie 1e-33 above the threshold
(alpha = 64): no floating-point threshold near the maximum tells it from one of 0. So nothing is measured from the
maximum. The unknown is q, the smallest weight of the support, and the others follow from the gaps between scores,
``p_i = (g_i + q^(1/P)) ^ P`` with ``g_i = (alpha - 1) (z_i - z_k)``, z_k the smallest score of the support: sums of
positive numbers, in which nothing cancels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..tracing import in_graph

# Up to here weights have been compared with exact arithmetic, and gradients of weights from 1e-4 on fit in float64.
LARGEST_ALPHA = 64.0
_MOST_STEPS, _STEPS_IN_GRAPH = 100, 24
# Of the length of a row, binary, where the graph must hold for any.
_DIGITS_IN_GRAPH = 24


def _log_weights(gap: Tensor, alpha: float) -> Tensor:
    """``log(((alpha - 1) gap) ^ P)``, ``-inf`` where the gap is not positive."""
    return (gap.clamp(min=0).log() + math.log(alpha - 1)) / (alpha - 1)


def _smallest_of_support(z: Tensor, alpha: float) -> Tensor:
    """The place (..., 1) of the smallest score of the support, z (..., V) descending.

    A score is in the support if the weights of those above it are less than one when the threshold is there.
    """
    low = torch.zeros_like(z[..., :1], dtype=torch.int64)
    high = (z > -torch.inf).sum(-1, keepdim=True).clamp(min=1)
    for _ in range(_DIGITS_IN_GRAPH if in_graph() else z.shape[-1].bit_length()):
        middle = (low + high) // 2
        mass = _log_weights(z - z.gather(-1, middle.clamp(max=z.shape[-1] - 1)), alpha).exp().sum(-1, keepdim=True)
        inside = (mass < 1) & (middle < high)
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return low


def steep_weights(x: Tensor, alpha: float) -> Tensor:
    """p over the last axis.

    Args:
        x: scores (..., V), float64; ``-inf`` masks an entry.
        alpha: above 2, up to 64.

    Returns:
        p, exact to a few roundings of the gaps; zeros for a fully masked row, NaN for one with a NaN or ``inf``.

    Cost: a sort, as many passes as V has binary digits, and Newton's steps on q: the mass is a sum of norms of
    ``(g_i ^ P, q)``, convex and increasing in q, so they fall monotonically from ``1 / k`` to the root.
    """
    z, order = x.sort(-1, descending=True)
    top = z[..., :1]
    z = torch.where(top.isfinite(), z, torch.zeros_like(z))
    stop = z.device.type == "cpu" and not in_graph()
    if stop:
        # No weight exceeds one, so that no score of the support lies further below the maximum.
        near = int(((z[..., :1] - z) * (alpha - 1) <= 1).sum(-1).max()) if z.numel() else z.shape[-1]
        z, order = z[..., :near], order[..., :near]
    last = _smallest_of_support(z, alpha)
    inside = torch.arange(z.shape[-1], device=z.device) <= last
    of_gap = _log_weights(z - z.gather(-1, last), alpha)
    q = 1 / (last + 1).to(z.dtype)
    for _ in range(_MOST_STEPS if stop else _STEPS_IN_GRAPH):
        p, share = _weights_from(q, of_gap, inside, alpha)
        excess = p.sum(-1, keepdim=True) - 1
        q = q * (1 - excess.clamp(min=0) / (p * share).sum(-1, keepdim=True)).clamp(min=1e-300)
        if stop and not bool((excess > 4 * torch.finfo(z.dtype).eps).any()):
            break
    p, _ = _weights_from(q, of_gap, inside, alpha)
    p = torch.zeros_like(x).scatter(-1, order, p / p.sum(-1, keepdim=True))
    return torch.where(top.isfinite(), p, torch.where(top == -torch.inf, 0.0, torch.nan))


def _weights_from(q: Tensor, of_gap: Tensor, inside: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """``(g^P ^ (1/P) + q ^ (1/P)) ^ P`` on the support, and the share of q in that sum."""
    log_q = q.log()
    distance = (log_q - of_gap) * (alpha - 1)
    larger = torch.maximum(of_gap, log_q)
    p = (larger + torch.log1p((-distance.abs()).exp()) / (alpha - 1)).exp()
    return torch.where(inside, p, 0.0), torch.sigmoid(distance)
