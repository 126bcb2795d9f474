"""Picture of the multilabel study."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from ..lib.records import Figures

VARIED = {  # the first word of a run's name, and the label of its axis
    "labels": "mean number of labels",
    "range": "range of the number of labels",
    "words": "words a document",
}


def draw(points: dict[str, dict[str, list[Figures]]], path: Path) -> None:
    """Draw F1 and labels of nonzero probability over each of the three varied settings.

    Args:
        points: figures of all seeds, by point and pair.
        path: of the picture.
    """
    figure = Figure(figsize=(12, 6), layout="constrained")
    axes = figure.subplots(2, 3, sharex="col")
    rows = (("micro_f1", "micro F1"), ("support_size", "labels of nonzero probability"))
    for column, (what, title) in enumerate(VARIED.items()):
        here = {int(name.removeprefix(f"{what}-")): row for name, row in points.items() if name.startswith(f"{what}-")}
        pairs = dict.fromkeys(pair for row in here.values() for pair in row)
        for (key, label), axis in zip(rows, axes[:, column]):
            for pair, marker in zip(pairs, "os^D"):
                done = {x: fmean(seed[key] for seed in row[pair]) for x, row in here.items() if pair in row}
                axis.plot(list(done), list(done.values()), marker=marker, label=pair)
            axis.set_ylabel(label if column == 0 else "")
            axis.grid(alpha=0.3)
        axes[1, column].set_xlabel(title)
    if axes[0, 0].has_data():
        axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
