"""Claims on multilabel classification: figures of four pairs of map and loss."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from recipes.lib.seeds import Mean

from ._outcome import Outcome, runs

SYNTHETIC = "recipes/multilabel/results/documents.json"
MULAN = {name: f"recipes/multilabel/results/{name}.json" for name in ("birds", "emotions", "scene")}
VARIED = ("labels-", "range-", "words-")  # the settings of Section 5.1.1
PERCENT = 0.01
HIGHER_IS_BETTER = {"micro_f1": True, "jensen_shannon": False, "support_size": False}


def _point(record: Mapping[str, Any]) -> str:
    """The name of a run without its pair."""
    return record["run"].removesuffix(f"-{record['settings']['pair']}")


def _data(record: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    """The settings of a run but for its pair and seed."""
    return tuple((name, value) for name, value in record["settings"].items() if name not in ("pair", "seed"))


def means(path: str, key: str, unit: float = 1.0) -> dict[str, dict[str, Mean]]:
    """A figure by run and pair, averaged over seeds, in some unit."""
    seeds: dict[str, dict[str, list[float]]] = {}
    for record in runs(path):
        of_point = seeds.setdefault(_point(record), {})
        of_point.setdefault(record["settings"]["pair"], []).append(record["figures"][key] / unit)
    return {point: {pair: Mean(values) for pair, values in row.items()} for point, row in seeds.items()}


def wins(pair: str, over: str, figure: str, share: float = 0.5) -> Outcome:
    """Count the points of the synthetic study at which one pair is ahead of another; enough is ``share`` of them."""
    data = {_point(record): _data(record) for record in runs(SYNTHETIC)}
    # One row where the three series cross.
    rows = {data[point]: row for point, row in means(SYNTHETIC, figure).items() if point.startswith(VARIED)}
    better = 1 if HIGHER_IS_BETTER[figure] else -1
    ahead = [better * (row[pair] - row[over]) > 0 for row in rows.values()]
    return Outcome(f"{pair} at {sum(ahead)} of {len(ahead)} points", fmean(ahead) >= share)


def hinge_beats_huber() -> Outcome:
    """Compare both hinge losses with sparsemax+huber."""
    outcomes = [
        wins(pair, "sparsemax+huber", "micro_f1", 0.9) for pair in ("sparsemax+hinge", "sparsehourglass+hinge")
    ]
    return Outcome("; ".join(outcome.figures for outcome in outcomes), all(outcome.holds for outcome in outcomes))


def mulan_is_a_draw() -> Outcome:
    """Compare the range of micro F1 over pairs on each Mulan set with five points."""
    scores = {name: means(path, "micro_f1", PERCENT)["data"].values() for name, path in MULAN.items()}
    text = ", ".join(f"{name} {min(f1):.1f} to {max(f1):.1f}" for name, f1 in scores.items())
    return Outcome(f"micro F1: {text}", all(max(f1) - min(f1) < 5 for f1 in scores.values()))
