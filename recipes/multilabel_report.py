"""What the multilabel study reports: tables of micro F1, and a picture of the three varied settings."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

Record = dict[str, Any]
# The names of runs begin with what is varied; how the picture calls it.
VARIED = {
    "labels": "mean number of labels",
    "range": "range of the number of labels",
    "words": "words a document",
}


def means(records: list[Record]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Mean and standard deviation over seeds of every figure: by point (``labels-2``), then by pair."""
    points: dict[str, dict[str, list[dict[str, float]]]] = {}
    for record in records:
        pair = record["settings"]["pair"]
        point = record["run"].removesuffix(f"-{pair}")
        points.setdefault(point, {}).setdefault(pair, []).append(record["figures"])
    return {point: {pair: _over_seeds(seeds) for pair, seeds in row.items()} for point, row in points.items()}


def _over_seeds(seeds: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    values = {key: [figures[key] for figures in seeds] for key in seeds[0]}
    return {key: {"mean": fmean(v), "std": stdev(v) if len(v) > 1 else 0.0} for key, v in values.items()}


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table and draw the picture."""
    found = means(results["runs"])
    print(table(found))
    draw(found, out / "multilabel.png")


def table(points: dict[str, Any]) -> str:
    """Points by pairs, micro F1 in percent."""
    pairs = list(dict.fromkeys(pair for row in points.values() for pair in row))
    lines = [f"{'micro F1':<14}" + "".join(f"{pair:>24}" for pair in pairs)]
    for point, row in points.items():
        cells = [f"{row[pair]['micro_f1']['mean']:>24.1%}" if pair in row else " " * 24 for pair in pairs]
        lines.append(f"{point:<14}{''.join(cells)}")
    return "\n".join(lines)


def draw(points: dict[str, Any], path: Path) -> None:
    """F1 and labels of nonzero probability as each of the three settings is varied, of all points there are."""
    figure = Figure(figsize=(12, 6), layout="constrained")
    axes = figure.subplots(2, 3, sharex="col")
    rows = (("micro_f1", "micro F1"), ("support_size", "labels of nonzero probability"))
    for column, (what, title) in enumerate(VARIED.items()):
        here = {int(name.removeprefix(f"{what}-")): row for name, row in points.items() if name.startswith(f"{what}-")}
        pairs = dict.fromkeys(pair for row in here.values() for pair in row)
        for (key, label), axis in zip(rows, axes[:, column]):
            for pair, marker in zip(pairs, "os^D"):
                done = {x: row[pair][key]["mean"] for x, row in here.items() if pair in row}
                axis.plot(list(done), list(done.values()), marker=marker, label=pair)
            axis.set_ylabel(label if column == 0 else "")
            axis.grid(alpha=0.3)
        axes[1, column].set_xlabel(title)
    if axes[0, 0].has_data():
        axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
