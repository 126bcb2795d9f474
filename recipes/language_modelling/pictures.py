"""Pictures of the language-model recipe."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..lib.records import Record
from ..lib.seeds import by_run, mean_of


def plain(runs: Iterable[Record]) -> list[Record]:
    """Runs from scratch that keep one map and its loss from the first step to the last."""
    changed = ("conversion", "start_alpha", "likelihood")
    return [run for run in runs if not any(run["settings"][name] for name in changed)]


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw divergence against variety, and sparsemax score against wrong repetition: a point per decoding."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    runs = plain(results["runs"])
    for name, seeds in by_run(runs).items():
        settings, figures = seeds[0]["settings"], mean_of([run["figures"] for run in seeds])
        marker = "o" if settings["attention"] == "softmax" else "s"
        for decoding, row in figures["decodings"].items():
            label = f"{name}, {decoding}" if settings["head"] == "softmax" else name
            different = figures["written"][decoding]["distinct"]["2"]
            style = "none" if settings["head"] == "softmax" else "full"
            for axes, x, y in ((left, different, row["jensen_shannon"]), (right, row["wrep"], row["sparsemax_score"])):
                axes.plot(x, y, marker, label=label, fillstyle=style)
    if runs:
        human = runs[0]["figures"]
        left.axvline(human["written"]["human"]["distinct"]["2"], color="grey", linestyle=":", label="human text")
    left.set_xlabel("different pairs of tokens in sampled text")
    left.set_ylabel("Jensen-Shannon divergence, nats (lower is better)")
    right.set_xlabel("drawn tokens that wrongly repeat")
    right.set_ylabel("sparsemax score (higher is better)")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="x-small")
    figure.savefig(path, dpi=110)


def draw_curves(results: dict[str, Any], path: Path) -> None:
    """Draw accuracy and eps-perplexity on development rows over the steps, a colour per head, a line per seed."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    runs = [run for run in plain(results["runs"]) if run["settings"]["attention"] == "softmax"]
    names = list(by_run(runs))
    for run in runs:
        curve, seed = run["figures"]["curve"], run["settings"]["seed"]
        steps = [point["step"] for point in curve]
        for axes, key, factor in ((left, "dev_accuracy", 100), (right, "dev_eps_perplexity", 1)):
            values = [factor * point[key] for point in curve]
            label = run["run"] if seed == runs[0]["settings"]["seed"] else None
            axes.plot(steps, values, color=f"C{names.index(run['run'])}", linewidth=1, label=label)
    left.set(xlabel="step", ylabel="accuracy on development rows, percent")
    right.set(xlabel="step", ylabel="eps-perplexity on development rows", yscale="log")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="x-small")
    figure.savefig(path, dpi=110)
