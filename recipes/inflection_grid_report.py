"""What the inflection grid reports: a table, and a picture of accuracy and of how often one form is left."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

Record = dict[str, Any]


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table and draw the picture."""
    print(table(results["runs"]))
    draw(results["runs"], out / "inflection_grid.png")


def table(records: list[Record]) -> str:
    """One line a run."""
    lines = ["run                                      seed  accuracy   one form   all seen   certified   candidates"]
    for record in records:
        figures = record["figures"]
        lines.append(
            f"{record['run']:<40} {record['settings']['seed']:>4} {figures['accuracy']:>9.1%} "
            f"{figures['one_form']:>10.1%} {figures['all_forms_seen']:>10.1%} {figures['certified']:>11.1%} "
            f"{figures['head_support']:>12.2f}"
        )
    return "\n".join(lines)


def draw(records: list[Record], path: Path) -> None:
    """A line a run: accuracy by language, and how often beam search saw every possible form; means over seeds."""
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(record["run"], []).append(record["figures"])
    figure = Figure(figsize=(11, 1.2 + 0.3 * len(runs)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for language, marker in zip(records[0]["figures"]["accuracy_by_language"], "os^Dv<>*"):
        accuracy = [100 * fmean(seed["accuracy_by_language"][language] for seed in seeds) for seeds in runs.values()]
        left.plot(accuracy, list(runs), marker, label=language)
    left.grid(alpha=0.3)
    left.invert_yaxis()
    left.set(xlabel="accuracy, percent")
    for key, label in (("all_forms_seen", "every possible form was seen"), ("one_form", "there is only one")):
        right.barh(list(runs), [100 * fmean(seed[key] for seed in seeds) for seeds in runs.values()], label=label)
    right.set(xlabel="words, percent", xlim=(0, 100))
    for axes in (left, right):
        axes.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
    figure.savefig(path, dpi=110)
