"""``python -m benchmarks.picture FILE [OUT]`` draws what ``--only density`` measured: ratio over alpha and density."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

TICKS = (0.1, 0.3, 1, 3, 10)
CASE = re.compile(r"(?P<what>.*), alpha (?P<alpha>\S+), (?P<share>\S+)% in the support, (?P<dtype>\S+)")


def draw(path: Path, out: Path) -> None:
    """One panel for each job, dtype and implementation: a line per alpha, the ratio over the share in the support."""
    panels: dict[tuple[str, str, str], dict[float, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    wanted = {}
    for row in json.loads(path.read_text())["rows"]:
        found = CASE.fullmatch(row["case"])
        if found and row["candidate"] != row["baseline"]:
            panel = (found["what"], found["dtype"], row["candidate"])
            panels[panel][float(found["alpha"])].append((float(found["share"]), row["ratio"]))
            wanted[panel] = max(row["target"], wanted.get(panel, 0.0))
    alphas = sorted({alpha for lines in panels.values() for alpha in lines})
    colors = dict(zip(alphas, matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(alphas)))))
    columns = min(4, len(panels))
    num_rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        num_rows,
        columns,
        figsize=(3.4 * columns, 2.6 * num_rows + 0.5),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, (panel, lines) in zip(axes.flat, panels.items()):
        for alpha, points in sorted(lines.items()):
            axis.plot(*zip(*sorted(points)), marker="o", markersize=3, color=colors[alpha])
        axis.axhline(wanted[panel], color="black", linewidth=0.8, linestyle="--")
        axis.set(xscale="log", yscale="log", yticks=TICKS, yticklabels=[f"{tick:g}" for tick in TICKS])
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.set_title("\n".join((panel[0], ", ".join(panel[1:]))), fontsize=8)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.supxlabel("% of the row in the support")
    figure.supylabel("ratio to softmax or cross-entropy (dashed: aim)")
    legend = [Line2D([], [], color=colors[alpha], marker="o", label=f"alpha {alpha:g}") for alpha in alphas]
    figure.legend(handles=legend, loc="outside upper center", ncols=len(alphas), fontsize=8, frameon=False)
    figure.savefig(out, dpi=80)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    draw(source, Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_suffix(".png"))
