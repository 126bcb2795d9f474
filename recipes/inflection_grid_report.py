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
    """Accuracy by language, a bar a run, and how often beam search saw every possible form."""
    first = {record["run"]: record["figures"] for record in reversed(records)}  # of several seeds the first
    names = list(reversed(first))
    figure = Figure(figsize=(12, 2 + 0.28 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2)
    languages = list(first[names[0]]["accuracy_by_language"])
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        values = [100 * value for value in first[name]["accuracy_by_language"].values()]
        left.bar([place + number * width for place in range(len(languages))], values, width, label=name)
    left.set_xticks([place + 0.4 for place in range(len(languages))], languages)
    left.set(ylabel="accuracy, percent", xlim=(-0.1, len(languages)))
    left.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    places = range(len(names))
    right.barh(places, [100 * first[name]["all_forms_seen"] for name in names], label="every possible form was seen")
    right.barh(places, [100 * first[name]["one_form"] for name in names], label="there is only one")
    right.set_yticks(places, names, fontsize=6)
    right.invert_yaxis()
    right.set(xlabel="words, percent")
    right.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    figure.savefig(path, dpi=110)
