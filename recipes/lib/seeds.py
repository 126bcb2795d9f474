"""Figures of one run over several seeds: means, and how far the seeds are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from .records import Record


class Mean(float):
    """The mean of a figure over seeds; formatted, it is followed by their standard deviation.

    >>> f"{Mean([1.0, 2.0, 3.0]):.1f}", f"{Mean([1.0]):.1f}"
    ('2.0 ± 1.0', '1.0')
    """

    values: tuple[float, ...]

    def __new__(cls, values: Sequence[float]) -> Mean:
        """Take the mean of the figures of some seeds, at least one."""
        mean = super().__new__(cls, fmean(values))
        mean.values = tuple(values)
        return mean

    def __format__(self, form: str) -> str:
        """The mean, and ± the standard deviation where there are several seeds."""
        alone = format(float(self), form)
        return f"{alone} ± {stdev(self.values):{form}}" if len(self.values) > 1 else alone


def apart(values: Sequence[float], form: str) -> str:
    """Mean and standard deviation over seeds as text; where they agree, as in a count or a share of none, that alone.

    >>> apart([1.0, 2.0, 3.0], ".1f"), apart([20, 20, 20], ".0f")
    ('2.0 ± 1.0', '20')
    """
    return over_seeds(values if len(set(values)) > 1 else values[:1], form)


def over_seeds(values: Sequence[float], form: str) -> str:
    """Mean and standard deviation over seeds as text; of one seed its value alone."""
    return format(Mean(values), form)


def by_run(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by the name of their run, one for each seed."""
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(record["run"], []).append(record)
    return runs


def seeds_text(records: Iterable[Record]) -> str:
    """The seeds of some records, as text."""
    seeds = sorted({record["settings"]["seed"] for record in records})
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"seeds {', '.join(map(str, seeds))} (mean ± standard deviation)"


def mean_of(figures: Sequence[Any], mean: Callable[[Sequence[float]], float] = fmean) -> Any:
    """Mean of figures that several seeds share, inside lists and dictionaries too; of other values the first.

    A seed without a figure (None) has no part in its mean.

    >>> mean_of([{"bleu": 30, "curve": [1.0]}, {"bleu": 32, "curve": [2.0]}])
    {'bleu': 31.0, 'curve': [1.5]}
    """
    figures = [figure for figure in figures if figure is not None]
    first = figures[0] if figures else None
    if isinstance(first, dict):
        return {key: mean_of([each[key] for each in figures], mean) for key in first}
    if isinstance(first, list):
        return [mean_of(entries, mean) for entries in zip(*figures)]
    return mean(figures) if isinstance(first, (int, float)) and not isinstance(first, bool) else first
