"""Report of the conditioning recipe: p(L), the distance of masking and ASAp from it, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from ..lib.blocks import block, read
from ..lib.environment import origin
from ..lib.records import Figures, Record

RESULT = "recipes/conditioning/results/conditioning.json"
TITLES = {
    "inflection": "verb forms, given the list of all forms",
    "fields": "fields after a prompt, given a pattern",
    "commands": "speech in some noise, given a list of commands",
    "commands-noisy": "speech in as much noise as sound, given a list of commands",
}


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table and draw how ASAp comes closer, draw by draw."""
    print("\n".join(_lines(results["runs"])))
    draw(results["runs"], out / "conditioning.png")


def draw(runs: Sequence[Record], path: Path) -> None:
    """Draw the mean KL from the true conditional over the number of draws that ASAp has learned from."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        paths = [case["path"] for case in _known(run["figures"])]
        longest = max(map(len, paths), default=0)
        means = [fmean(path[min(n, len(path) - 1)] for path in paths) for n in range(longest)]
        axes.plot(range(longest), means, marker=".", label=TITLES[run["run"]])
    axes.set_xlabel("draws that ASAp has learned from (0: masking)")
    axes.set_ylabel("mean KL from p(output | L), nats")
    axes.axhline(0, color="black", linewidth=1, label="exact conditioning")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


@block
def conditioning_table() -> str:
    """Cases, p(L), and how far masking and ASAp are from the true conditional."""
    return "\n".join(_lines(read(RESULT)["runs"]))


@block
def conditioning_words() -> str:
    """How many right outputs conditioning finds, and how many inputs without one it tells."""
    lines = []
    for run in read(RESULT)["runs"]:
        figures = run["figures"]
        if "greedy" not in figures:
            continue
        known = [case["right"] for case in figures["cases"] if "right" in case]
        others = [case for case in figures["cases"] if "right" not in case]
        title = TITLES[run["run"]]
        lines.append(
            f"- {title}: greedy decoding gets {figures['greedy']:.0%} of {len(known)} right, "
            f"the likeliest of {figures['entries']:,} entries is right for {fmean(known):.0%}."
        )
        if others:
            none = sum(case["complete"] and not case["members"] for case in others)
            lines[-1] += f" Of {len(others)} inputs that are no entry, {none} are proved to be none."
    return "\n".join(lines)


@block
def conditioning_origin() -> str:
    """Origin of the figures."""
    return origin(read(RESULT)["runs"])


def _known(figures: Figures) -> list[Figures]:
    return [case for case in figures["cases"] if "masking" in case]


def _lines(runs: Sequence[Record]) -> list[str]:
    lines = [
        "| outputs | inputs | complete | impossible | mean p(L), at least | mean prefixes | KL masking | KL ASAp |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        cases, known = run["figures"]["cases"], _known(run["figures"])
        complete = [case for case in cases if case["complete"]]
        lines.append(
            f"| {TITLES[run['run']]} | {len(cases)} | {len(complete)} | "
            f"{sum(not case['members'] for case in complete)} | "
            f"{fmean(case['probability'][0] for case in cases):.1%} | "
            f"{fmean(case['expanded'] for case in cases):.0f} | {_mean(known, 'masking')} | {_mean(known, 'asap')} |"
        )
    return lines


def _mean(cases: Sequence[Figures], name: str) -> str:
    return f"{fmean(case[name] for case in cases):.3f}" if cases else "-"
