"""The search for a temperature: a grid, then finer grids around its best point."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def best_temperatures(
    errors: Callable[[Tensor], Tensor],
    middle: Tensor,
    reach: float = 64.0,
    points: int = 13,
    rounds: int = 3,
) -> Tensor:
    """The temperatures at which errors are smallest, for several heads at once, each with its own minimum.

    The first grid runs from ``middle / reach`` to ``middle * reach``; each further one spans the neighbours of the
    best point of the one before. With the defaults neighbours are 1.9 % apart in the end. Of temperatures that cost
    the same, the one nearest to the middle of the grid is taken, and none that costs NaN (where a map overflows) while
    another does not.

    Args:
        errors: from temperatures (heads,) to what they cost (heads,).
        middle: (heads,), where to begin.
        reach: above 1.
        points: of a grid; odd.
        rounds: number of grids.

    Returns:
        Temperatures (heads,), float64, to three significant digits.

    >>> found = best_temperatures(lambda temperature: (temperature.log() - 0.7) ** 2, torch.tensor([8.0]))
    >>> round(float(found), 1)  # exp(0.7)
    2.0
    """
    middle = middle.double()
    steps = torch.linspace(-1, 1, points, dtype=torch.float64, device="cpu")
    steps = steps[steps.abs().argsort(stable=True)]  # argmin takes the first of equals
    for _ in range(rounds):
        candidates = reach ** steps[:, None] * middle
        costs = torch.stack([errors(each).detach().double().cpu() for each in candidates])
        costs = costs.masked_fill(costs.isnan(), torch.inf)  # argmin takes NaN for the least
        middle = candidates.gather(0, costs.argmin(0, keepdim=True))[0]
        reach **= 2 / (points - 1)
    rounded = [float(f"{temperature:.3g}") for temperature in middle.tolist()]
    return torch.tensor(rounded, dtype=torch.float64, device="cpu")
