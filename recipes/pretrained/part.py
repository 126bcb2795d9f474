"""A part: one kind of run, with all that the recipe says of it; ``parts.py`` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..lib.card import Measure
from ..lib.records import Figures, Record

Cells = list[str]
Draw = Callable[[Sequence[Record], Path], None]

WAYS = ("dense", "swapped", "calibrated")
ZEROS = Measure("zeros in attention", "zeros", ".1%")


class Verdict(NamedTuple):
    """An aim of the recipe, what was found, and whether that meets it."""

    aim: str
    found: str
    met: bool


def how(settings: dict[str, Any]) -> str:
    """The calls that make attention sparse."""
    edges = f", edges={settings['edges']:g}" if settings["edges"] else ""
    return f'`attn="{settings["map"]}"`, `calibrate(model, loader{edges})`'


def how_head(goal: str, number: float) -> str:
    """The calls that make a head sparse, for a goal of ``calibrate``."""
    return f'`head="entmax15"`, `calibrate(model, loader, {goal}={number:g})`'


def no_weight_trained(settings: dict[str, Any], figures: Figures) -> str:
    """What was fitted where nothing else was."""
    return "No weight was trained: temperatures and alphas were fitted to the dense model."


def text_of(settings: dict[str, Any]) -> str:
    """The name of a text: its file, and the folder of that."""
    return "/".join(Path(settings["data"]).parts[-2:])


def second_half(settings: dict[str, Any], figures: Figures) -> str:
    """The tokens that were judged on, of running text."""
    return f"{text_of(settings)}: {figures['tokens']:,} tokens of its second half; calibrated on as many of its first"


@dataclass(frozen=True)
class Description:
    """What the model card of a run says.

    Attributes:
        task: as the Hub calls it.
        measures: columns of the table.
        ways: rows of the table by way, given the figures of the run.
        place: where softmax was replaced.
        fitted: what of the model was fitted or trained, and what that promises, given settings and figures.
        data: what it was judged on, given settings and figures.
    """

    task: str
    measures: tuple[Measure, ...]
    ways: Callable[[Figures], dict[str, dict[str, Any]]]
    place: str = "in attention"
    fitted: Callable[[dict[str, Any], Figures], str] = no_weight_trained
    data: Callable[[dict[str, Any], Figures], str] = second_half


@dataclass(frozen=True)
class Part:
    """A kind of run.

    Attributes:
        name: as in the setting ``part``.
        run: makes a model sparse and measures it, given settings and the folder of the run.
        reads: names of the settings that a run reads, beside ``seed`` and ``part``.
        text: what is measured on, in the table of all runs.
        cells: what became sparse, how, zeros, and figures dense, swapped and calibrated, given settings and figures;
            None for a part that has a table of its own.
        description: for model cards; None where no weights are left.
        verdicts: aims, given the records of all its runs, of which there is one at least.
        pictures: what draws these records, by name of the file.
        reads_too: names of further settings that a run reads, given its settings.
    """

    name: str
    run: Callable[[Any, Path], Figures]
    reads: tuple[str, ...]
    text: str = "running text"
    cells: Callable[[dict[str, Any], Figures], Cells] | None = None
    description: Description | None = None
    verdicts: Callable[[Sequence[Record]], Iterable[Verdict]] = lambda records: ()
    pictures: Mapping[str, Draw] = field(default_factory=dict)
    reads_too: Callable[[Any], tuple[str, ...]] = lambda settings: ()
