"""The result of testing a claim, and the runs it is tested on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from recipes.lib.blocks import read
from recipes.lib.seeds import Mean, by_run, mean_of

Figures = dict[str, Any]


class NotRun(LookupError):
    """A study has no run of this name yet."""


class Outcome(NamedTuple):
    """Our figures for a claim.

    Attributes:
        figures: as the table shows them.
        holds: whether the claim is true of them.
    """

    figures: str
    holds: bool


def runs(path: str) -> list[dict[str, Any]]:
    """The runs of a result file, in the order of the study."""
    return read(path)["runs"]


def figures_of(path: str) -> dict[str, Figures]:
    """The figures of every run of a study by name: means over its seeds, which know their deviation."""
    seeds = {name: [record["figures"] for record in records] for name, records in by_run(runs(path)).items()}
    return {name: mean_of(figures, Mean) for name, figures in seeds.items()}


def seeds_of(path: str, names: Collection[str]) -> str:
    """How many seeds some runs of a study have, in brackets; nothing where it is one."""
    counts = sorted({len(records) for name, records in by_run(runs(path)).items() if name in names})
    return "" if counts == [1] else f" (means of {' to '.join(map(str, counts))} seeds)"


def listed(values: Mapping[str, float], form: str) -> str:
    """Names with a number each, separated by commas."""
    return ", ".join(f"{name} {value:{form}}" for name, value in values.items())
