"""A few long rows, as in decoding: one read of the scores, then a handful of entries solved in plain numbers.

Such a row takes so little time that every call of torch counts. The number of calls here does not depend on the length
of the row, and where only tens of entries are left, Python's own floats are faster than tensors and float64 for free.
"""

from __future__ import annotations

from bisect import bisect_right
from math import isfinite, ulp
from operator import mul, neg

import torch
from torch import Tensor

from .newton import exponent_of
from .rows import has_tangent

# More rows than this keep torch busy enough: candidates.py is faster.
FEW_ROWS = 8
# Scores are read in groups of 16. A row with 64 groups above its lower bound is crowded.
_GROUP, _MOST_GROUPS = 16, 64


def only_values_wanted(z: Tensor) -> bool:
    """Whether z is not differentiated, backward or forward, nor mapped over by ``torch.func``."""
    if (z.requires_grad and torch.is_grad_enabled()) or has_tangent(z):
        return False
    try:
        z.data_ptr()
    except RuntimeError:  # the tensors of a transform have no data of their own
        return False
    return True


def solve_few_rows(z: Tensor, alpha: float) -> Tensor | None:
    """alpha-entmax of a few long rows, by the subset test of ``candidates``.

    Args:
        z: (..., V) scores on a CPU, at most 8 rows with V at least 1024, any floating-point dtype; ``-inf`` masks an
            entry.
        alpha: in (1, 2].

    Returns:
        p, shape and dtype of z, computed in float64, without a gradient. None if a row is crowded, is fully masked,
        or holds a NaN or ``inf``.

    Cost: a dozen calls of torch, one of which reads z and one of which writes zeros, and work in plain Python in
    proportion to the supports.
    """
    exponent, length = exponent_of(alpha), z.shape[-1]
    found = _near(z.reshape(-1, length), alpha, exponent)
    if found is None:
        return None
    index: list[int] = []
    weights: list[float] = []
    for row, (scores, kept, bound) in enumerate(zip(*found)):
        entries = _above(scores, bound)
        p = _weights([score for score, _ in entries], bound, alpha, exponent)
        if p is None:
            return None
        weights += p
        index += [row * length + _column(place, kept, length) for _, place in entries]
    written = torch.zeros_like(z, memory_format=torch.contiguous_format)
    values = torch.tensor(weights, dtype=torch.float64, device="cpu").to(z.dtype)
    written.view(-1).index_put_((torch.tensor(index, device="cpu"),), values)
    return written


def _near(
    rows: Tensor, alpha: float, exponent: float
) -> tuple[list[list[float]], list[list[int]], list[float]] | None:
    """The groups of rows (N, V) that can hold support: their scores, their numbers, and the rows' lower bounds.

    The scores are the first members of all groups, then the second, and so on, and last the tail of the row, which
    belongs to no group. None if a row is crowded or has no finite maximum.
    """
    num_groups = rows.shape[1] // _GROUP
    whole = num_groups * _GROUP
    # Group k is {k, k + num_groups, k + 2 num_groups, ...}.
    groups = rows[:, :whole].view(len(rows), _GROUP, num_groups)
    maxima, places = groups.amax(1).topk(_MOST_GROUPS)
    best = maxima.tolist()
    if not all(isfinite(scores[0]) for scores in best):
        return None
    bounds = [_lower_bound(scores, alpha, exponent) for scores in best]
    num_near = max(bisect_right(scores, -bound, key=neg) for scores, bound in zip(best, bounds))
    if num_near == _MOST_GROUPS:
        return None
    places = places[:, :num_near]
    near = groups.gather(2, places[:, None].expand(-1, _GROUP, -1)).flatten(1)
    if whole < rows.shape[1]:
        near = torch.cat([near, rows[:, whole:]], 1)
    return near.tolist(), places.tolist(), bounds


def _column(place: int, kept: list[int], length: int) -> int:
    """The column of the score at a place of what ``_near`` found, ``kept`` being the groups."""
    member, group = divmod(place, len(kept))
    num_groups = length // _GROUP
    return member * num_groups + kept[group] if member < _GROUP else place + (num_groups - len(kept)) * _GROUP


def _lower_bound(maxima: list[float], alpha: float, exponent: float) -> float:
    """A lower bound of a row's threshold, in units of z, from its largest maxima: groups below it can be dropped.

    Rounding may carry it up to the maximum itself, far from zero, but past no score of the support.
    """
    top = maxima[0]
    return top + raised([(score - top) * (alpha - 1) for score in maxima], -1.0, exponent, 3) / (alpha - 1)


def _above(scores: list[float], bound: float) -> list[tuple[float, int]]:
    """The scores that are not below the bound, with their places; so a NaN in the tail is among them."""
    return [(score, place) for place, score in enumerate(scores) if not score < bound]


def _weights(scores: list[float], bound: float, alpha: float, exponent: float) -> list[float] | None:
    """The weights of a row's candidates; None where one is not finite."""
    top = max(scores)
    x = [(score - top) * (alpha - 1) for score in scores]
    if not all(map(isfinite, x)):
        return None
    # A lower bound still, however the bound was rounded.
    rounding = 2 * max(ulp(top), ulp(bound))
    tau = raised(x, max(-1.0, (bound - top - rounding) * (alpha - 1)), exponent, 100)
    p = [(entry - tau) ** exponent if entry > tau else 0.0 for entry in x]
    mass = sum(p)
    return [weight / mass for weight in p]


def raised(x: list[float], tau: float, exponent: float, num_steps: int) -> float:
    """A lower bound tau of the root after that many of the Newton steps of ``newton``, or at the root."""
    for _ in range(num_steps):
        u = [entry - tau for entry in x if entry > tau]
        powers = u if exponent == 2 else [entry ** (exponent - 1) for entry in u]
        mass = sum(map(mul, powers, u))
        step = (mass - mass ** (1 - 1 / exponent)) / sum(powers)
        if step <= 1e-15:
            break
        tau += step
    return tau
