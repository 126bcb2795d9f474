"""The result of testing a claim, and the runs it is tested on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from recipes.lib.blocks import read

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
    """The figures of every run of a study with one seed, by name."""
    return {record["run"]: record["figures"] for record in runs(path)}


def listed(values: Mapping[str, float], form: str) -> str:
    """Names with a number each, separated by commas."""
    return ", ".join(f"{name} {value:{form}}" for name, value in values.items())
