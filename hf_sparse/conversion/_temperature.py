"""The search for a temperature: a grid, then finer grids around its best point."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 3
_POINTS = 13
_MIDDLE, _REACH = 8.0, 64.0


class TemperatureSearch:
    """Minimizes an error over the temperature, for several heads at once, each with its own minimum.

    The first grid runs from 1/8 to 512; each further one spans the neighbours of the best point of the one before.
    After three rounds neighbours are 1.9 % apart.

    Args:
        heads: how many temperatures to find.

    >>> search = TemperatureSearch(heads=1)
    >>> for _ in range(ROUNDS):
    ...     for i, temperature in enumerate(search.candidates):
    ...         search.add(i, (temperature.log() - 0.7) ** 2)
    ...     search.zoom()
    >>> [round(temperature, 1) for temperature in search.best]  # exp(0.7)
    [2.0]
    """

    def __init__(self, heads: int = 1) -> None:
        self._middle = torch.full((heads,), _MIDDLE, dtype=torch.float64)
        self._reach = _REACH
        self._errors = torch.zeros(_POINTS, heads, dtype=torch.float64)

    @property
    def candidates(self) -> Tensor:
        """The temperatures of this round: (points, heads)."""
        steps = self._reach ** torch.linspace(-1, 1, _POINTS, dtype=torch.float64)
        return steps[:, None] * self._middle

    def add(self, point: int, errors: Tensor) -> None:
        """Add what the candidates of one point cost on some data: (heads,)."""
        self._errors[point] += errors.detach().double().cpu()

    def zoom(self) -> None:
        """End the round: go on around the best point of each head."""
        best = self._errors.argmin(0, keepdim=True)
        self._middle = self.candidates.gather(0, best)[0]
        self._reach **= 2 / (_POINTS - 1)
        self._errors.zero_()

    @property
    def best(self) -> list[float]:
        """The best temperatures so far, one a head, to three significant digits."""
        return [float(f"{temperature:.3g}") for temperature in self._middle.tolist()]
