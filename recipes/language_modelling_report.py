"""What the language-model recipe reports: a table and a picture, from one file of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def lines(results: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every run in every way of decoding, by a name that tells both."""
    return [
        (f"{run['run']}, {decoding}", figures)
        for run in results["runs"]
        for decoding, figures in run["figures"]["decodings"].items()
    ]


def report(results: dict[str, Any], out: Path) -> None:
    """Print the figures and draw them."""
    print(f"{'':<34} eps-ppl      ppl  sp-score  JS (nats)  missed  support     rep    wrep")
    for name, row in lines(results):
        perplexity = "-" if row["perplexity"] is None else f"{row['perplexity']:.1f}"
        print(
            f"{name:<34}{row['eps_perplexity']:8.1f} {perplexity:>8}  {row['sparsemax_score']:8.3f}  "
            f"{row['jensen_shannon']:9.3f}  {row['missed']:6.1%}  {row['support']:7.1f}  {row['rep']:6.1%}  "
            f"{row['wrep']:6.1%}"
        )
    draw(results, out / "language_modelling.png")


def draw(results: dict[str, Any], path: Path) -> None:
    """How well it fits against how different its words are, and wrong repetition: a point for every decoding."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    runs = [run for run in results["runs"] if not run["settings"]["conversion"]]
    for run in runs:
        marker = "o" if run["settings"]["attention"] == "softmax" else "s"
        for decoding, row in run["figures"]["decodings"].items():
            name = f"{run['run']}, {decoding}" if run["settings"]["head"] == "softmax" else run["run"]
            different = run["figures"]["written"][decoding]["distinct"]["2"]
            style = "none" if run["settings"]["head"] == "softmax" else "full"
            for axes, x, y in ((left, different, row["jensen_shannon"]), (right, row["wrep"], row["sparsemax_score"])):
                axes.plot(x, y, marker, label=name, fillstyle=style)
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
