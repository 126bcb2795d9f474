"""Pictures of the translation sweep: attention, supports, and the course of training."""

from __future__ import annotations

from math import log10
from pathlib import Path

from matplotlib.figure import Figure

from ..lib.records import Record

CURVES = {
    "softmax": "tab:gray",
    "output-entmax15": "tab:blue",
    "output-sparsemax": "tab:green",
    "output-alpha_relu": "tab:orange",
}
LEARNED = {"softmax": "tab:gray", "output-1.33": "tab:red", "entmax15": "tab:blue", "sparsemax": "tab:green"}
CONTROLLED = ("sparsegen_lin", "sparsehourglass")


def draw(records: list[Record], out: Path) -> None:
    """Draw every picture that there are runs for, of the first seed."""
    runs = {record["run"]: record for record in reversed(records)}
    draw_training(runs, out / "sweep_training.png")
    draw_accuracy(runs, out / "sweep_accuracy.png")
    draw_supports(runs, out / "sweep_supports.png")
    draw_attention(runs, out / "sweep_attention.png")


def draw_training(runs: dict[str, Record], path: Path) -> None:
    """Draw threshold of 1.5-entmax, norm of the logits, and accuracy at every tau of alpha-ReLU, over steps."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for name, colour in CURVES.items():
        if name in runs:
            curve = runs[name]["figures"]["curve"]
            steps = [point["step"] for point in curve]
            left.plot(steps, [point["threshold"] for point in curve], color=colour, label=name)
            middle.plot(steps, [point["logit_norm"] for point in curve], color=colour, label=name)
    if "output-alpha_relu" in runs:
        fixed = runs["output-alpha_relu"]["figures"]["config"]["head"]["tau"]
        left.axhline(fixed, color="tab:orange", linestyle=":", label="tau of alpha_relu")
    for name, record in runs.items():
        if name.startswith("output-alpha_relu") and not name.endswith(("smoothed", "untied")):
            curve = record["figures"]["curve"]
            right.plot(
                [point["step"] for point in curve],
                [100 * point["accuracy"] for point in curve],
                label=f"tau {record['figures']['config']['head']['tau']:.2g}",
            )
    left.set(title="threshold of 1.5-entmax of logits / temperature", xlabel="step")
    middle.set(title="norm of the logits", xlabel="step")
    right.set(title="alpha-ReLU: right next tokens, percent", xlabel="step")
    for axes in (left, middle, right):
        if axes.lines:
            axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def draw_accuracy(runs: dict[str, Record], path: Path) -> None:
    """Draw right next tokens on development rows, and tokens possible at a step, over steps."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, colour in LEARNED.items():
        if name in runs:
            curve = runs[name]["figures"]["curve"]
            steps = [point["step"] for point in curve]
            left.plot(steps, [100 * point["accuracy"] for point in curve], color=colour, label=name)
            right.plot(steps, [point["head_support"] for point in curve], color=colour, label=name)
    left.set(title="right next tokens, percent", xlabel="step")
    right.set(title="tokens possible at a step", xlabel="step", yscale="log")
    for axes in (left, right):
        if axes.lines:
            axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def draw_supports(runs: dict[str, Record], path: Path) -> None:
    """Draw the histogram of support sizes, and the number of attended source tokens over the control."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, colour in CURVES.items():
        if name in runs and name != "softmax":
            histogram = runs[name]["figures"]["head_support_histogram"]
            total = sum(histogram.values())
            sizes = [int(size) for size in histogram]
            left.plot(sizes, [100 * count / total for count in histogram.values()], "o-", color=colour, label=name)
    left.set(xlabel="tokens of nonzero probability (up to, doubling)", ylabel="steps, percent")
    left.set_xscale("log", base=2)
    for kind in CONTROLLED:
        points = controlled(runs, kind)
        right.plot([point[0] for point in points], [point[1] for point in points], "o-", label=kind)
    right.set(xlabel="lambda of sparsegen_lin; log10 q of sparsehourglass", ylabel="source tokens attended a step")
    for axes in (left, right):
        if axes.lines:
            axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def controlled(runs: dict[str, Record], kind: str) -> list[tuple[float, float]]:
    """Control (lambda, or log10 q) and number of attended tokens of every run with that map in cross-attention."""
    points = []
    for name, record in runs.items():
        if name.startswith(f"cross-{kind}-"):
            value = float(name.removeprefix(f"cross-{kind}-"))
            points.append((value if kind == "sparsegen_lin" else log10(value), record["figures"]["attended"]))
    return sorted(points)


def draw_attention(runs: dict[str, Record], path: Path) -> None:
    """Draw cross-attention in one sentence: softmax, and sparsegen-lin as lambda grows; dots mark nonzero weights."""
    names = sorted(
        (name for name in runs if name.startswith("cross-sparsegen_lin-")), key=lambda name: float(name[20:])
    )
    names = [name for name in ("softmax", *names) if name in runs]
    if not names:
        return
    figure = Figure(figsize=(3.4 * len(names), 4), layout="constrained")
    grid = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(grid, names):
        shown = runs[name]["figures"]["example"]
        axes.imshow(shown["weights"], cmap="Blues", vmin=0, vmax=1)
        for row, weights in enumerate(shown["weights"]):
            for column, weight in enumerate(weights):
                if weight > 0:
                    axes.plot(column, row, ".", color="tab:red", markersize=2)
        axes.set_xticks(range(len(shown["keys"])), shown["keys"], rotation=90, fontsize=7, parse_math=False)
        axes.set_yticks(range(len(shown["queries"])), shown["queries"], fontsize=7, parse_math=False)
        axes.set_title(name.replace("cross-sparsegen_lin-", "sparsegen-lin, lambda "), fontsize=9)
    figure.savefig(path, dpi=110)
