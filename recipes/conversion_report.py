"""What the conversion recipe reports: a table and a picture, from one result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

COLOURS = {"train": "tab:orange", "anneal": "tab:blue", "distil": "tab:purple", "scratch": "tab:green"}


def baseline(result: dict[str, Any], model: str) -> dict[str, Any]:
    """The row of the dense model trained on for the steps of a conversion."""
    return next(row for row in result["rows"] if (row["model"], row["way"]) == (model, "continue"))


def table(result: dict[str, Any]) -> str:
    """Every run as a line of a Markdown table, its loss beside that of the dense model trained on."""
    lines = [
        "| model | sparse | way | steps | loss | to dense trained on | tokens missed | accuracy | support |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        dense = baseline(result, row["model"])["loss"]
        place = "-" if row["place"] == "none" else row["place"]
        lines.append(
            f"| {row['model']} | {place} | {row['way']} | {row['step']} | {row['loss']:.3f} | "
            f"{row['loss'] / dense - 1:+.1%} | {row['missed']:.1%} | {row['accuracy']:.1%} | {row['support']:.0f} |"
        )
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Loss against steps: a row for each model, a column for each place that is sparse."""
    rows = result["rows"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    places = list(dict.fromkeys(row["place"] for row in rows if row["place"] != "none"))
    figure = Figure(figsize=(4 * max(len(places), 1), 3.2 * len(models)), layout="constrained")
    grid = figure.subplots(len(models), max(len(places), 1), sharex=True, sharey="row", squeeze=False)
    for axes_row, model in zip(grid, models):
        runs = {(row["place"], row["way"]): row for row in rows if row["model"] == model}
        dense = runs["none", "dense"]["curve"], runs["none", "continue"]["curve"]
        for axes, place in zip(axes_row, places):
            axes.plot(*_points([*dense[0], *dense[1]]), "k.-", label="dense")
            for way, colour in COLOURS.items():
                if (place, way) in runs:
                    curve = runs[place, way]["curve"]
                    # Annealing begins at softmax, so that its first point is the dense model's last.
                    before = {"train": runs.get((place, "swap"), {"curve": []})["curve"], "scratch": []}
                    axes.plot(*_points([*before.get(way, dense[0][-1:]), *curve]), ".-", color=colour, label=way)
            for way, marker in (("swap", "x"), ("calibrate", "+")):
                if (place, way) in runs:
                    axes.plot(*_points(runs[place, way]["curve"]), marker, color="tab:red", markersize=9, label=way)
            axes.set_title(f"{model}, sparse {place}")
            axes.set_xlabel("steps")
        last = [row["curve"][-1]["loss"] for row in runs.values()]
        axes_row[0].set_ylim(min(last) * 0.97, dense[0][0]["loss"] * 1.02)
        axes_row[0].set_ylabel("loss, nats a token")
    grid[0][-1].legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize="small")
    figure.savefig(path, dpi=110)


def _points(curve: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return [point["step"] for point in curve], [point["loss"] for point in curve]
