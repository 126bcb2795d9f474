"""``python -m benchmarks.picture FILE [OUT]`` draws what ``--only density`` measured: ratio over alpha and density."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

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
    columns = min(4, len(panels))
    figure, axes = plt.subplots(
        -(-len(panels) // columns), columns, figsize=(4 * columns, 3 * -(-len(panels) // columns)), squeeze=False
    )
    for axis, (panel, lines) in zip(axes.flat, panels.items()):
        for alpha, points in sorted(lines.items()):
            shares, ratios = zip(*sorted(points))
            axis.plot(shares, ratios, marker="o", markersize=3, label=f"{alpha:g}")
        axis.axhline(wanted[panel], color="black", linewidth=0.8, linestyle="--")
        axis.set(xscale="log", yscale="log", xlabel="% of the row in the support", ylabel="ratio")
        axis.set_title("\n".join((panel[0], ", ".join(panel[1:]))), fontsize=8)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    axes.flat[0].legend(title="alpha", fontsize=6)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    draw(source, Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_suffix(".png"))
