"""Picture of the grid."""

from __future__ import annotations

from itertools import cycle
from math import nan
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from ..lib.records import Figures, Record


def draw(records: list[Record], path: Path) -> None:
    """Draw accuracy by language, and the share of words with all or one form seen; means over seeds, a row per run.

    A run has no point in languages that it was not evaluated on.
    """
    runs: dict[str, list[Figures]] = {}
    for record in records:
        runs.setdefault(record["run"], []).append(record["figures"])
    figure = Figure(figsize=(11, 1.2 + 0.3 * len(runs)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    languages = dict.fromkeys(name for record in records for name in record["figures"]["accuracy_by_language"])
    for language, marker in zip(languages, cycle("os^Dv<>*")):
        found = {
            name: [
                seed["accuracy_by_language"][language] for seed in seeds if language in seed["accuracy_by_language"]
            ]
            for name, seeds in runs.items()
        }
        accuracy = [100 * fmean(values) if values else nan for values in found.values()]
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
