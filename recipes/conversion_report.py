"""What the conversion recipe reports: a table and a picture, from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

COLOURS = {"train": "tab:orange", "anneal": "tab:blue", "distil": "tab:purple", "scratch": "tab:green"}


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table, and draw the losses of the first seed."""
    records = results["runs"]
    print(f"\n{table(records)}")
    first = min(record["settings"]["seed"] for record in records)
    draw([record for record in records if record["settings"]["seed"] == first], out / "conversion.png")


def table(records: list[dict[str, Any]]) -> str:
    """Every run as a line of a Markdown table, its loss beside that of the dense model trained on."""
    baseline = {
        (record["settings"]["model"], record["settings"]["seed"]): record["figures"]["loss"]
        for record in records
        if record["settings"]["way"] == "continue"
    }
    lines = [
        "| model | sparse | way | seed | steps | loss | to dense trained on | tokens missed | accuracy | support |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        settings, figures = record["settings"], record["figures"]
        dense = baseline.get((settings["model"], settings["seed"]))
        difference = "" if dense is None else f"{figures['loss'] / dense - 1:+.1%}"
        place = "-" if settings["place"] == "none" else settings["place"]
        lines.append(
            f"| {settings['model']} | {place} | {settings['way']} | {settings['seed']} | {figures['step']} | "
            f"{figures['loss']:.3f} | {difference} | {figures['missed']:.1%} | {figures['accuracy']:.1%} | "
            f"{figures['support']:.0f} |"
        )
    return "\n".join(lines)


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Loss against steps: a row for each model, a column for each place that is sparse."""
    by_model: dict[str, dict[tuple[str, str], list[dict[str, Any]]]] = {}
    for record in records:
        settings = record["settings"]
        curves = by_model.setdefault(settings["model"], {})
        curves[settings["place"], settings["way"]] = record["figures"]["curve"]
    places = list(dict.fromkeys(place for curves in by_model.values() for place, _ in curves if place != "none"))
    if not places:
        return
    figure = Figure(figsize=(4 * len(places), 3.2 * len(by_model)), layout="constrained")
    grid = figure.subplots(len(by_model), len(places), sharex=True, sharey="row", squeeze=False)
    for axes_row, (model, curves) in zip(grid, by_model.items()):
        dense = curves["none", "dense"]
        for axes, place in zip(axes_row, places):
            axes.plot(*_points([*dense, *curves.get(("none", "continue"), [])]), "k.-", label="dense")
            for way, colour in COLOURS.items():
                if (place, way) in curves:
                    # Annealing begins at softmax, so that its first point is the dense model's last.
                    before = {"train": curves.get((place, "swap"), []), "scratch": []}.get(way, dense[-1:])
                    axes.plot(*_points([*before, *curves[place, way]]), ".-", color=colour, label=way)
            for way, marker in (("swap", "x"), ("calibrate", "+")):
                if (place, way) in curves:
                    axes.plot(*_points(curves[place, way]), marker, color="tab:red", markersize=9, label=way)
            axes.set_title(f"{model}, sparse {place}")
            axes.set_xlabel("steps")
        last = [curve[-1]["loss"] for curve in curves.values()]
        axes_row[0].set_ylim(min(last) * 0.97, dense[0]["loss"] * 1.02)
        axes_row[0].set_ylabel("loss, nats a token")
    grid[0][-1].legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize="small")
    figure.savefig(path, dpi=110)


def _points(curve: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return [point["step"] for point in curve], [point["loss"] for point in curve]
