"""Figures of one run over several seeds: means, and how far the seeds are apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from .records import Record


def over_seeds(values: Sequence[float], form: str) -> str:
    """Mean and standard deviation over seeds as text; of one seed its value alone.

    >>> over_seeds([1.0, 2.0, 3.0], ".1f"), over_seeds([1.0], ".1f")
    ('2.0 ± 1.0', '1.0')
    """
    return f"{fmean(values):{form}}" + (f" ± {stdev(values):{form}}" if len(values) > 1 else "")


def by_run(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by the name of their run, one for each seed."""
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(record["run"], []).append(record)
    return runs


def mean_of(figures: Sequence[Any]) -> Any:
    """Mean of figures that several seeds share, inside lists and dictionaries too; of other values the first.

    >>> mean_of([{"bleu": 30, "curve": [1.0]}, {"bleu": 32, "curve": [2.0]}])
    {'bleu': 31.0, 'curve': [1.5]}
    """
    first = figures[0]
    if isinstance(first, dict):
        return {key: mean_of([each[key] for each in figures]) for key in first}
    if isinstance(first, list):
        return [mean_of(entries) for entries in zip(*figures)]
    return fmean(figures) if isinstance(first, (int, float)) and not isinstance(first, bool) else first
