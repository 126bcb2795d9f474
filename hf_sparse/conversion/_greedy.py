"""The order in which to spend an error budget: always where a key costs least."""

from __future__ import annotations

from collections.abc import Sequence


def greedy_order(costs: Sequence[Sequence[float]], gains: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Steps ``(item, level)``, each raising one item to a higher level at the least cost for what it gains.

    Every item starts at level 0, which costs and gains nothing. Where costs and gains of items add up and every gain
    of an item costs more than the one before, no choice of levels at the cost of the first n steps gains more.

    Args:
        costs: for each item, what levels 1, 2, ... cost.
        gains: for each item, what they gain; levels that gain no more than a lower one are never taken.

    Returns:
        All steps, cheapest first.

    >>> greedy_order(costs=[[1.0, 5.0], [2.0, 3.0]], gains=[[1.0, 2.0], [1.0, 2.0]])
    [(0, 1), (1, 2), (0, 2)]
    """
    levels = [0] * len(costs)
    order: list[tuple[int, int]] = []
    while True:
        best: tuple[float, int, int] | None = None
        for item, level in enumerate(levels):
            cost, gain = (0.0, 0.0) if level == 0 else (costs[item][level - 1], gains[item][level - 1])
            for higher in range(level + 1, len(costs[item]) + 1):
                gained = gains[item][higher - 1] - gain
                if gained > 0:
                    # A level that costs less than nothing by a rounding error is free.
                    price = max(costs[item][higher - 1] - cost, 0.0) / gained
                    # At the same price the larger step.
                    best = min(best or (price, item, -higher), (price, item, -higher))
        if best is None:
            return order
        _, item, minus_level = best
        levels[item] = -minus_level
        order.append((item, -minus_level))
