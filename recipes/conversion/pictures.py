"""Picture of the conversion recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..lib.records import Record

COLOURS = {"train": "tab:orange", "anneal": "tab:blue", "distil": "tab:purple", "scratch": "tab:green"}
MARKERS = {"swap": "x", "calibrate": "+"}
Curves = dict[tuple[str, str], list[dict[str, Any]]]  # points of a curve, by place and way


def draw(records: list[Record], path: Path) -> None:
    """Draw loss over steps, a row per model and a column per place."""
    by_model: dict[str, Curves] = {}
    for record in records:
        settings = record["settings"]
        by_model.setdefault(settings["model"], {})[settings["place"], settings["way"]] = record["figures"]["curve"]
    places = list(dict.fromkeys(place for curves in by_model.values() for place, _ in curves if place != "none"))
    if not places:
        return
    figure = Figure(figsize=(4 * len(places), 3.2 * len(by_model)), layout="constrained")
    grid = figure.subplots(len(by_model), len(places), sharex=True, sharey="row", squeeze=False)
    for axes_row, (model, curves) in zip(grid, by_model.items()):
        for axes, place in zip(axes_row, places):
            _draw_place(axes, curves, place)
            axes.set_title(f"{model}, sparse {place}")
            axes.set_xlabel("steps")
        last = [curve[-1]["loss"] for curve in curves.values()]
        axes_row[0].set_ylim(min(last) * 0.97, curves["none", "dense"][0]["loss"] * 1.02)
        axes_row[0].set_ylabel("loss, nats a token")
    grid[0][-1].legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize="small")
    figure.savefig(path, dpi=110)


def _draw_place(axes: Axes, curves: Curves, place: str) -> None:
    dense = curves["none", "dense"]
    axes.plot(*_points([*dense, *curves.get(("none", "continue"), [])]), "k.-", label="dense")
    for way, colour in COLOURS.items():
        if (place, way) in curves:
            # Annealing begins at softmax: its first point is the last one of the dense model.
            before = {"train": curves.get((place, "swap"), []), "scratch": []}.get(way, dense[-1:])
            axes.plot(*_points([*before, *curves[place, way]]), ".-", color=colour, label=way)
    for way, marker in MARKERS.items():
        if (place, way) in curves:
            axes.plot(*_points(curves[place, way]), marker, color="tab:red", markersize=9, label=way)


def _points(curve: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return [point["step"] for point in curve], [point["loss"] for point in curve]
