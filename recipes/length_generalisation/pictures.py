"""Picture of the length-generalisation recipe."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from ..lib.records import Record


def by_seed(runs: list[Record], measure: str) -> dict[tuple[str, str], dict[int, list[float]]]:
    """A measure of every seed, by task and attention, then by length."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for run in runs:
        settings = run["settings"]
        at = found.setdefault((settings["task"], settings["attention"]), {})
        for entry in run["figures"]["lengths"]:
            at.setdefault(entry["length"], []).append(entry[measure])
    return found


def draw(runs: list[Record], path: Path) -> None:
    """Draw accuracy and loss over length, a column per task; bars span the seeds."""
    tasks = list(dict.fromkeys(run["settings"]["task"] for run in runs))
    attentions = list(dict.fromkeys(run["settings"]["attention"] for run in runs))
    figure = Figure(figsize=(3.4 * len(tasks) + 2, 5.6), layout="constrained")
    grid = figure.subplots(2, len(tasks), sharex="col", sharey="row", squeeze=False)
    for axes_row, measure in zip(grid, ("tokens", "loss")):
        for (task, attention), at in by_seed(runs, measure).items():
            axes, number = axes_row[tasks.index(task)], attentions.index(attention)
            means = [fmean(values) for values in at.values()]
            lower = [mean - min(values) for mean, values in zip(means, at.values())]
            upper = [max(values) - mean for mean, values in zip(means, at.values())]
            x = [length * 1.03**number for length in at]
            axes.errorbar(x, means, [lower, upper], marker="o", markersize=4, label=attention)
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(at), [str(length) for length in at])
    for axes, task in zip(grid[0], tasks):
        axes.set_title(task)
    for axes in grid[1]:
        axes.set_xlabel("length (trained up to the first)")
        axes.set_yscale("log")
    grid[0][0].set_ylabel("answer tokens right")
    grid[1][0].set_ylabel("loss, nats an answer token")
    grid[0][-1].legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize="small")
    figure.savefig(path, dpi=110)
