"""Slow and obvious versions of the maps, in float64: nothing here shares code with the package."""

from itertools import chain, combinations

import torch


def entmax_by_bisection(z: torch.Tensor, alpha: float) -> torch.Tensor:
    """alpha-entmax of the last axis, alpha > 1."""
    x = (alpha - 1) * z.double()
    low, high = x.amax(-1, keepdim=True) - 1, x.amax(-1, keepdim=True)
    for _ in range(200):
        middle = (low + high) / 2
        if bool(((middle == low) | (middle == high)).all()):  # no number is between them
            break
        heavy = (x - middle).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
    p = (x - low).clamp(min=0).pow(1 / (alpha - 1))
    return p / p.sum(-1, keepdim=True)


def supports(size: int):
    """All non-empty subsets of range(size)."""
    return chain.from_iterable(combinations(range(size), length) for length in range(1, size + 1))


def sparsemax_by_enumeration(z: torch.Tensor) -> torch.Tensor:
    """The one support whose mean threshold separates it from the rest."""
    for support in supports(len(z)):
        tau = (sum(z[i] for i in support) - 1) / len(support)
        p = (z - tau).clamp(min=0)
        if {i for i in range(len(z)) if z[i] > tau} == set(support):
            return p
    raise AssertionError("no support fits")


def entmax15_by_enumeration(z: torch.Tensor) -> torch.Tensor:
    """The one support whose threshold ``mean - sqrt((1 - variance sum) / size)`` separates it from the rest."""
    x = z / 2
    for support in supports(len(z)):
        own = x[list(support)]
        spread = 1 - ((own - own.mean()) ** 2).sum()
        if spread < 0:
            continue
        tau = own.mean() - (spread / len(support)).sqrt()
        if {i for i in range(len(z)) if x[i] > tau} == set(support):
            return (x - tau).clamp(min=0) ** 2
    raise AssertionError("no support fits")


def clipped_by_bisection(weights, z: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """``min(u, weights(z - tau))`` with mass one, for one row and increasing weights."""
    low, high = z.min() - 200, z.max() + 200
    for _ in range(300):
        middle = (low + high) / 2
        if torch.minimum(u, weights(z - middle)).sum() >= 1:
            low = middle
        else:
            high = middle
    return torch.minimum(u, weights(z - low))


def clusters(length: int, alpha: float) -> torch.Tensor:
    """Rows that Newton's method has a hard time with: thousands of equal scores may leave the support at once.

    Each has one score of 0 and clusters below, of sizes and distances in geometric progression, at many scales: some
    cluster lies next to the threshold. (N, length) float32.
    """
    reach = 1 / (alpha - 1)  # how far below the first score a threshold can be
    rows = []
    for ratio in (0.5, 0.2, 0.05, 0.01):
        for growth in (2, 8, 50):
            row, start, size, gap = torch.zeros(length), 1, 1, reach / 2
            while start < length:
                row[start : start + size] = gap - reach
                start, size, gap = start + size, size * growth, gap * (1 - ratio)
            rows += [row * scale for scale in torch.linspace(0.2, 3, 40)]
    return torch.stack(rows)
