"""The temperature at which a sparse map starts to learn from scratch as fast as softmax, from its size alone."""

from __future__ import annotations

import math

from .arguments import check_count, check_number


def balanced_temperature(alpha: float, vocab_size: int) -> float:
    """``T = V ** ((alpha - 1) / 2)``: 1 for softmax, and larger the sparser the map and the more classes there are.

    The loss ``T L(z / T, y)`` has the gradient ``p - y`` at every T; T decides its curvature,
    ``(diag(s) - s s' / sum(s)) / T`` with ``s = p ** (2 - alpha)``. At k equally likely classes that is
    ``k ** (alpha - 1) / T`` times the curvature of softmax: as large at ``T = k ** (alpha - 1)``. A model begins at
    about k = V and ends near k = 1. A smaller T suits the end, and at the start gives most classes exact zeros by the
    noise of untrained weights; a larger one suits the start, and leaves p flat. This is the middle of the two on the
    scale of logarithms, ``k = sqrt(V)``.

    Args:
        alpha: of the map, at least 1.
        vocab_size: V, number of classes; for attention, of keys.

    Returns:
        T; inf where it is larger than any float.

    Raises:
        ValueError: an argument out of range.
        TypeError: one that is no number.

    Source: the curvature is the Jacobian of Peters et al. 2019, Proposition 1, at ``z / T``. The choice of k is a rule
    of thumb.

    >>> round(balanced_temperature(1.5, 4096), 3)
    8.0
    """
    check_number("alpha", alpha, ">= 1 and finite", lambda value: 1 <= value < math.inf)
    check_count("vocab_size", vocab_size)
    try:
        return float(vocab_size ** ((alpha - 1) / 2))
    except OverflowError:
        return math.inf
