"""Claims on multilabel classification: figures of four pairs of map and loss."""

from __future__ import annotations

from statistics import fmean

from recipes.lib.seeds import Mean

from ._outcome import Outcome, runs

SYNTHETIC = "recipes/multilabel/results/documents.json"
MULAN = {name: f"recipes/multilabel/results/{name}.json" for name in ("birds", "emotions", "scene")}
VARIED = ("labels-", "range-", "words-")  # the settings of Section 5.1.1
PERCENT = 0.01
HIGHER_IS_BETTER = {"micro_f1": True, "jensen_shannon": False, "support_size": False}


def means(path: str, key: str, unit: float = 1.0) -> dict[str, dict[str, Mean]]:
    """A figure by run and pair, averaged over seeds, in some unit."""
    seeds: dict[str, dict[str, list[float]]] = {}
    for record in runs(path):
        pair = record["settings"]["pair"]
        point = record["run"].removesuffix(f"-{pair}")
        seeds.setdefault(point, {}).setdefault(pair, []).append(record["figures"][key] / unit)
    return {point: {pair: Mean(values) for pair, values in row.items()} for point, row in seeds.items()}


def wins(pair: str, over: str, figure: str, share: float = 0.5) -> Outcome:
    """Count the points of the synthetic study at which one pair is ahead of another; enough is ``share`` of them."""
    rows = [row for point, row in means(SYNTHETIC, figure).items() if point.startswith(VARIED)]
    ahead = [row[pair] > row[over] if HIGHER_IS_BETTER[figure] else row[pair] < row[over] for row in rows]
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
