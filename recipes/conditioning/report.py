"""Report of the conditioning recipe: p(L), the distance of masking and ASAp from it, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from ..lib import markdown
from ..lib.blocks import block, read
from ..lib.environment import origin
from ..lib.records import Figures, Record
from ..lib.seeds import apart, by_run

RESULT = "recipes/conditioning/results/conditioning.json"
TITLES = {
    "inflection": "verb forms, given the list of all forms",
    "fields": "fields after a prompt, given a pattern",
    "commands": "speech in some noise, given a list of commands",
    "commands-noisy": "speech in as much noise as sound, given a list of commands",
}


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table and draw how ASAp comes closer, draw by draw."""
    print(_table(results["runs"]))
    draw(results["runs"], out / "conditioning.png")


def draw(runs: Sequence[Record], path: Path) -> None:
    """Draw the mean KL from the true conditional over the number of draws that ASAp has learned from."""
    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, records in by_run(runs).items():
        paths = [case["path"] for record in records for case in _known(record["figures"])]
        longest = max(map(len, paths), default=0)
        means = [fmean(path[min(n, len(path) - 1)] for path in paths) for n in range(longest)]
        axes.plot(range(longest), means, marker=".", label=TITLES[name])
    axes.set_xlabel("draws that ASAp has learned from (0: masking)")
    axes.set_ylabel("mean KL from p(output | L), nats")
    axes.axhline(0, color="black", linewidth=1, label="exact conditioning")
    figure.legend(fontsize="small", loc="outside upper center")
    figure.savefig(path, dpi=110)


@block
def conditioning_table() -> str:
    """Cases, p(L), and how far masking and ASAp are from the true conditional."""
    return _table(read(RESULT)["runs"])


@block
def conditioning_words() -> str:
    """How many right outputs conditioning finds, and how many inputs without one it tells."""
    lines = []
    for name, records in by_run(read(RESULT)["runs"]).items():
        every = [record["figures"] for record in records]
        if "greedy" not in every[0]:
            continue
        known = [[case["right"] for case in figures["cases"] if "right" in case] for figures in every]
        others = [[case for case in figures["cases"] if "right" not in case] for figures in every]
        lines.append(
            f"- {TITLES[name]}: greedy decoding gets {apart([figures['greedy'] for figures in every], '.0%')} of "
            f"{len(known[0])} right, the likeliest of {every[0]['entries']:,} entries is right for "
            f"{apart([*map(fmean, known)], '.0%')}."
        )
        if others[0]:
            none = [sum(case["complete"] and not case["members"] for case in cases) for cases in others]
            lines[-1] += f" Of {len(others[0])} inputs that are no entry, {apart(none, '.0f')} are proved to be none."
    return "\n".join(lines)


@block
def conditioning_origin() -> str:
    """Origin of the figures."""
    return origin(read(RESULT)["runs"])


def _known(figures: Figures) -> list[Figures]:
    return [case for case in figures["cases"] if "masking" in case]


def _table(runs: Sequence[Record]) -> str:
    columns = [
        "outputs", "inputs", "complete", "impossible", "mean p(L), at least", "mean prefixes", "KL masking", "KL ASAp",
    ]  # fmt: skip
    rows = []
    for name, records in by_run(runs).items():
        every = [record["figures"] for record in records]
        complete = [[case for case in figures["cases"] if case["complete"]] for figures in every]
        row = [
            TITLES[name],
            str(len(every[0]["cases"])),
            apart([*map(len, complete)], ".0f"),
            apart([sum(not case["members"] for case in cases) for cases in complete], ".0f"),
            apart([fmean(case["probability"][0] for case in figures["cases"]) for figures in every], ".1%"),
            apart([fmean(case["expanded"] for case in figures["cases"]) for figures in every], ".0f"),
            *(_distance([_known(figures) for figures in every], way) for way in ("masking", "asap")),
        ]
        rows.append(row)
    return markdown.table(columns, rows)


def _distance(seeds: Sequence[Sequence[Figures]], way: str) -> str:
    """The mean KL over the cases of each seed that have one, and over these seeds."""
    means = [fmean(case[way] for case in cases) for cases in seeds if cases]
    return apart(means, ".3f") if means else "-"
