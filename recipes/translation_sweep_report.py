"""What the translation sweep reports: a table, and pictures of attention, of supports and of what training moves."""

from __future__ import annotations

from math import log10
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

Record = dict[str, Any]
CURVES = {"softmax": "tab:gray", "output-entmax15": "tab:blue", "output-sparsemax": "tab:green",
          "output-alpha_relu": "tab:orange"}  # fmt: skip
CONTROLLED = ("sparsegen_lin", "sparsehourglass")
SCORES = ("bleu", "rouge1", "rouge2", "rougeL")


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table, and draw every picture for which there are runs."""
    runs = {record["run"]: record for record in reversed(results["runs"])}  # of several seeds the first
    print(table(results["runs"]))
    draw_training(runs, out / "sweep_training.png")
    draw_supports(runs, out / "sweep_supports.png")
    draw_attention(runs, out / "sweep_attention.png")


def table(records: list[Record]) -> str:
    """One line a run."""
    lines = []
    for record in records:
        figures = record["figures"]
        score = " ".join(f"{name} {figures[name]:5.2f}" for name in SCORES if name in figures)
        lines.append(
            f"{record['run']:<32} {score}  empty preferred {figures['empty_preferred']:5.1%}  support "
            f"{figures['head_support']:7.1f}  attended {figures['attended']:5.2f}  "
            f"{figures['tokens_per_cpu_second']:5.0f} tokens/s"
        )
    return "\n".join(lines)


def draw_training(runs: dict[str, Record], path: Path) -> None:
    """Threshold of 1.5-entmax and norm of the logits while models learn, and accuracy for every tau of alpha-ReLU."""
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
        if name.startswith("output-alpha_relu") and not name.endswith("smoothed"):
            curve = record["figures"]["curve"]
            right.plot(
                [point["step"] for point in curve],
                [100 * point["accuracy"] for point in curve],
                label=f"tau {record['figures']['config']['head']['tau']:.2g}",
            )
    left.set(title="threshold of 1.5-entmax of the logits", xlabel="step")
    middle.set(title="norm of the logits", xlabel="step")
    right.set(title="alpha-ReLU: right next tokens, percent", xlabel="step")
    for axes in (left, middle, right):
        if axes.lines:
            axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def draw_supports(runs: dict[str, Record], path: Path) -> None:
    """How many tokens are possible at a step, and how much of the source is attended as the control turns."""
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
    """The control (lambda, or log10 q) of every run with a map in cross-attention, and the tokens it attends."""
    points = []
    for name, record in runs.items():
        if name.startswith(f"cross-{kind}-"):
            value = float(name.removeprefix(f"cross-{kind}-"))
            points.append((value if kind == "sparsegen_lin" else log10(value), record["figures"]["attended"]))
    return sorted(points)


def draw_attention(runs: dict[str, Record], path: Path) -> None:
    """Heat maps of cross-attention in one sentence: softmax, and sparsegen-lin as lambda grows; zeros are white."""
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
