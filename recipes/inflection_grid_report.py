"""What the inflection grid reports: a table, and a picture of accuracy and of how often one form is left."""

from __future__ import annotations

from pathlib import Path
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
    """Accuracy by language, a line a run, and how often beam search saw every possible form."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    first = {record["run"]: record["figures"] for record in reversed(records)}  # of several seeds the first
    for name, figures in reversed(first.items()):
        languages = figures["accuracy_by_language"]
        left.plot(list(languages), [100 * value for value in languages.values()], "o-", label=name, markersize=3)
    left.set(ylabel="accuracy, percent")
    left.legend(fontsize=6)
    names = list(reversed(first))
    places = range(len(names))
    right.barh(places, [100 * first[name]["all_forms_seen"] for name in names], color="tab:blue", label="all seen")
    right.barh(places, [100 * first[name]["one_form"] for name in names], color="tab:orange", label="only one")
    right.set_yticks(places, names, fontsize=6)
    right.set(xlabel="words of which beam search saw every possible form, percent")
    right.legend(fontsize=7)
    figure.savefig(path, dpi=110)
