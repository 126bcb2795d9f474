"""A few long rows, as in decoding: one read of the scores, and a handful of entries solved for in plain numbers.

Such a row is over so soon that every call of torch counts: the calls here are as many for a long row as for a short
one, and where only tens of entries are left, Python's own floats are faster than tensors, and float64 for free.
"""

from __future__ import annotations

from bisect import bisect_left
from math import isfinite
from operator import mul, neg

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from .newton import exponent_of

# More rows than this keep torch busy enough: _candidates does better.
FEW_ROWS = 8
# The scores are looked at in groups of 16. A row with 64 of them in sight has too wide a support for this.
_GROUP, _MOST_GROUPS = 16, 64


def only_values_wanted(z: Tensor) -> bool:
    """Whether nobody differentiates what is done to z, backward or forward, or maps over it with ``torch.func``."""
    if (z.requires_grad and torch.is_grad_enabled()) or unpack_dual(z).tangent is not None:
        return False
    try:
        z.data_ptr()
    except RuntimeError:  # the tensors of a transform have no data of their own
        return False
    return True


def solve_few_rows(z: Tensor, alpha: float) -> Tensor | None:
    """alpha-entmax of few long rows, by the subset test of ``_candidates``.

    Args:
        z: (..., V) scores on a CPU, at most 8 rows with V at least 1024, any floating-point dtype; ``-inf`` masks an
            entry.
        alpha: in (1, 2].

    Returns:
        p, shape and dtype of z, computed in float64, without a gradient. None if a row has a wide support, is fully
        masked, or holds a NaN or ``inf``.

    Cost: a dozen calls of torch, one of which reads z and one of which writes zeros, and work in plain Python in
    proportion to the supports.
    """
    exponent, length = exponent_of(alpha), z.shape[-1]
    rows = z.reshape(-1, length)
    num_rows = len(rows)
    num_groups = length // _GROUP
    whole = num_groups * _GROUP
    # Group k is {k, k + num_groups, k + 2 num_groups, ...}; the few entries of the tail belong to none.
    groups = rows[:, :whole].view(num_rows, _GROUP, num_groups)
    maxima, places = groups.amax(1).topk(_MOST_GROUPS)

    # The threshold of the largest maxima is a lower bound of the row's own: groups that lie below it can be dropped.
    bounds, num_near = [], 0
    for best in maxima.tolist():
        top = best[0]
        if not isfinite(top):
            return None
        bound = top + _raised([(score - top) * (alpha - 1) for score in best], -1.0, exponent, 3) / (alpha - 1)
        num_near = max(num_near, bisect_left(best, -bound, key=neg))
        bounds.append(bound)
    if num_near == _MOST_GROUPS:
        return None
    places = places[:, :num_near]
    near = groups.gather(2, places[:, None].expand(-1, _GROUP, -1)).flatten(1)
    if whole < length:
        near = torch.cat([near, rows[:, whole:]], 1)

    index: list[int] = []
    weights: list[float] = []
    for row, (scores, kept, bound) in enumerate(zip(near.tolist(), places.tolist(), bounds)):
        # Not "score > bound", which would overlook a NaN in the tail.
        entries = [(score, place) for place, score in enumerate(scores) if not score <= bound]
        top, _ = max(entries)
        x = [(score - top) * (alpha - 1) for score, _ in entries]
        if not all(map(isfinite, x)):
            return None
        tau = _raised(x, max(-1.0, (bound - top) * (alpha - 1)), exponent, 100)
        p = [(entry - tau) ** exponent if entry > tau else 0.0 for entry in x]
        mass = sum(p)
        weights += [weight / mass for weight in p]
        for _, place in entries:
            member, group = divmod(place, num_near)
            column = member * num_groups + kept[group] if member < _GROUP else place - num_near * _GROUP + whole
            index.append(row * length + column)
    return torch.zeros_like(z).put_(torch.tensor(index), torch.tensor(weights, dtype=torch.float64).to(z.dtype))


def _raised(x: list[float], tau: float, exponent: float, num_steps: int) -> float:
    """tau after that many of the Newton steps of ``_newton``, or at the root; from one lower bound to a better one."""
    for _ in range(num_steps):
        u = [entry - tau for entry in x if entry > tau]
        powers = u if exponent == 2 else [entry ** (exponent - 1) for entry in u]
        mass = sum(map(mul, powers, u))
        step = (mass - mass ** (1 - 1 / exponent)) / sum(powers)
        if step <= 1e-15:
            break
        tau += step
    return tau
