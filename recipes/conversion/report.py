"""Report of the conversion recipe: tables, blocks of the documentation, model cards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..lib import markdown
from ..lib.blocks import block, read
from ..lib.card import Card, Measure, alike
from ..lib.environment import origin
from ..lib.records import Figures, Record
from ..lib.seeds import Mean, by_run, mean_of, seeds_text
from .pictures import draw

RESULT = "recipes/conversion/results/wikitext2_multi30k.json"
CONVERSIONS = ("swap", "calibrate", "train", "anneal", "distil", "scratch")
PARTS = {"attention": ("attn",), "head": ("head",), "both": ("attn", "head")}
MEASURES = (
    Measure("loss (eps-perplexity, nats a token)", "loss", ".3f", "lower"),
    Measure("accuracy", "accuracy", ".1%", "higher"),
    Measure("sparsemax score", "sparsemax_score", ".3f", "higher"),
    Measure("gold token impossible", "missed", ".1%", "lower"),
    Measure("tokens possible", "support", ".0f"),
)
TRAINING = {
    "swap": "trained with softmax, which was then replaced by {maps}, without further training",
    "calibrate": "trained with softmax, which was then replaced by {maps} with fitted temperatures",
    "train": "trained with softmax, and further with {maps}",
    "anneal": "trained with softmax, and further with {maps}, alpha moving there from 1 after a calibration",
    "distil": "trained with softmax, and further with {maps}, annealed, with the dense model as a teacher",
    "scratch": "trained from scratch with {maps}",
}
NAMES = {"gpt2": "GPT-2", "bart": "BART"}
AVERAGED = ("loss", "loss_at", "support", "missed", "accuracy", "sparsemax_score")
Runs = dict[tuple[str, str], Figures]  # of one model, by place and way, averaged over seeds


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table, and draw the losses of the first seed."""
    records = results["runs"]
    print(f"\n{table(records)}")
    first = min(record["settings"]["seed"] for record in records)
    draw([record for record in records if record["settings"]["seed"] == first], out / "conversion.png")


def table(records: Sequence[Record]) -> str:
    """Figures of all runs in Markdown, one line per run, with losses relative to the dense model trained on."""
    baseline = {
        (record["settings"]["model"], record["settings"]["seed"]): record["figures"]["loss"]
        for record in records
        if record["settings"]["way"] == "continue"
    }
    columns = [
        "model", "sparse", "way", "seed", "steps", "loss", "to dense trained on",
        "tokens missed", "accuracy", "support",
    ]  # fmt: skip
    rows = []
    for record in records:
        settings, figures = record["settings"], record["figures"]
        dense = baseline.get((settings["model"], settings["seed"]))
        difference = "" if dense is None else f"{figures['loss'] / dense - 1:+.1%}"
        place = "-" if settings["place"] == "none" else settings["place"]
        run = [settings["model"], place, settings["way"], str(settings["seed"]), str(figures["step"])]
        tokens = [f"{figures['missed']:.1%}", f"{figures['accuracy']:.1%}", f"{figures['support']:.0f}"]
        rows.append([*run, f"{figures['loss']:.3f}", difference, *tokens])
    return markdown.table(columns, rows)


def condensed(figures: Figures) -> Figures:
    """The figures that git keeps: without the curve."""
    return {name: value for name, value in figures.items() if name != "curve"}


def card(record: Record, records: Sequence[Record]) -> Card:
    """Model card of one run, compared with the other ways to the same place."""
    settings, data = record["settings"], record["figures"]["data"]
    names = {"continue": "dense, trained on"}
    compared = {
        names.get(other["settings"]["way"], other["settings"]["way"]): other["figures"]
        for other in alike(record, records, "place", "way")
        if other["settings"]["place"] == settings["place"] or other["settings"]["way"] == "continue"
    }
    parts = PARTS.get(settings["place"], ())
    where = {"attention": "attention", "head": "the head", "both": "attention and the head"}.get(settings["place"])
    return Card(
        name=f"conversion-{record['run']}",
        title=f"A {NAMES[settings['model']]}-like model "
        + (f"converted to entmax in {where}" if where else "with softmax"),
        task="text-generation" if settings["model"] == "gpt2" else "text2text-generation",
        what=f"A model of {data['parameters']:,} parameters, {_training(settings, where)}",
        data=f"{data['what']}: {data['train_rows']:,} rows to train on, {data['dev_rows']:,} held out; "
        f"{settings['steps']} and {settings['conversion_steps']} steps of {settings['batch_size']} rows; seed "
        f"{settings['seed']}.",
        measures=MEASURES,
        rows=compared,
        own=names.get(settings["way"], settings["way"]),
        dense="dense, trained on",
        limits="A model of this size, trained for minutes, shows what a conversion costs, and no more. One "
        "run: differences of a hundredth mean nothing.",
        record=record,
        config=record["figures"].get("config", _asked(settings)),
        support={"head_support": record["figures"]["support"]} if "head" in parts else {},
    )


def _asked(settings: dict[str, Any]) -> dict[str, Any] | None:
    """Maps as they were asked for; older records do not have those of the trained model."""
    if settings["place"] == "none":
        return None
    sparse = {"name": "entmax", "alpha": settings["alpha"]}
    dense = {"version": 1, "attn": None, "head": None, "fused_loss": False}
    return dense | dict.fromkeys(PARTS[settings["place"]], sparse)


def _training(settings: dict[str, Any], where: str | None) -> str:
    if where is None:
        return "trained with softmax."
    maps = f"entmax (alpha {settings['alpha']:g}) in {where}"
    how = TRAINING[settings["way"]].format(maps=maps)
    return f"{how}. The other ways to the same maps are beside it, for as many steps."


def by_model(records: Sequence[Record]) -> dict[str, Runs]:
    """The figures of runs by model."""
    found: dict[str, Runs] = {}
    for of_run in by_run(records).values():
        settings, figures = of_run[0]["settings"], of_run[0]["figures"]
        means = mean_of([{key: record["figures"][key] for key in AVERAGED} for record in of_run], Mean)
        found.setdefault(settings["model"], {})[settings["place"], settings["way"]] = figures | means
    return found


def excess(figures: Figures, of_model: Runs) -> float:
    """Loss of a run relative to that of the dense model trained on, minus 1."""
    return figures["loss"] / of_model["none", "continue"]["loss"] - 1


@block
def conversion() -> str:
    """Losses of all conversions beside those of the dense models, and supports and scores of sparse attention."""
    records = read(RESULT)["runs"]
    runs = by_model(records)
    reached = [
        f"{model}, sparse {place} ({excess(figures, of_model):+.2%})"
        for model, of_model in runs.items()
        for (place, way), figures in of_model.items()
        if way == "anneal" and excess(figures, of_model) <= 0.01
    ]
    within = f"Within 1 % of the dense model trained on, after calibrate and anneal: {'; '.join(reached) or 'none'}."
    return "\n\n".join([_losses(runs), _supports(runs), within, _origin(records, runs)])


def _losses(runs: dict[str, Runs]) -> str:
    rows = []
    for model, of_model in runs.items():
        dense, base = (of_model["none", way] for way in ("dense", "continue"))
        rows.append([model, "dense", str(dense["step"]), f"{dense['loss']:.3f}", "", ""])
        rows.append([model, "dense, trained on", str(base["step"]), f"**{base['loss']:.3f}**", "", ""])
        for way in CONVERSIONS:
            found = [of_model[place, way] for place in PARTS]
            cells = [f"{figures['loss']:.3f} ({excess(figures, of_model):+.1%})" for figures in found]
            rows.append([model, way, str(found[0]["step"]), *cells])
    return markdown.table(["model", "way", "steps", "attention", "head", "both"], rows)


def _supports(runs: dict[str, Runs]) -> str:
    columns = [
        "model", "sparse", "way", "tokens possible", "gold token impossible", "accuracy", "sparsemax score",
        "loss at u = 0.1 %", "at 10 %",
    ]  # fmt: skip
    rows = []
    for model, of_model in runs.items():
        for (place, way), figures in of_model.items():
            if place in ("none", "head"):
                tokens = [f"{figures['support']:.0f}", f"{figures['missed']:.1%}", f"{figures['accuracy']:.1%}"]
                losses = [f"{figures['loss_at'][share]:.3f}" for share in ("0.001", "0.1")]
                where = "-" if place == "none" else place
                rows.append([model, where, way, *tokens, f"{figures['sparsemax_score']:.3f}", *losses])
    return markdown.table(columns, rows)


def _origin(records: Sequence[Record], runs: dict[str, Runs]) -> str:
    settings = records[0]["settings"]
    learned = []
    for model, of_model in runs.items():
        data = of_model["none", "dense"]["data"]
        learned.append(
            f"{model}: {data['what']}, {data['train_rows']:,} rows to train on, {data['dev_rows']:,} held out, "
            f"{data['vocabulary']:,} tokens, {data['parameters']:,} parameters"
        )
    return (
        f"{'; '.join(learned)}. entmax, alpha {settings['alpha']:g}; {settings['steps']} and "
        f"{settings['conversion_steps']} steps of {settings['batch_size']} rows, alpha annealed over "
        f"{settings['anneal_over']:.0%} of the latter; {seeds_text(records)}. {origin(records)}"
    )
