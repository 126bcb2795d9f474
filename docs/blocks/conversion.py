"""The conversion recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._blocks import block, read
from ._cards import Card, Measure, cards
from ._studies import origin

CONVERSIONS = ("swap", "calibrate", "train", "anneal", "distil", "scratch")
Record = dict[str, Any]


def runs() -> dict[str, dict[tuple[str, str], Record]]:
    """The runs of each model, by place and way."""
    found: dict[str, dict[tuple[str, str], Record]] = {}
    for record in read("recipes/results/conversion.json")["runs"]:
        settings = record["settings"]
        found.setdefault(settings["model"], {})[settings["place"], settings["way"]] = record
    return found


def excess(record: Record, of_model: dict[tuple[str, str], Record]) -> float:
    """By what share the loss of a run is above that of the dense model trained on."""
    return record["figures"]["loss"] / of_model["none", "continue"]["figures"]["loss"] - 1


@block
def conversion() -> str:
    """The loss of every conversion beside that of the dense model, and how sparse the annealed models are."""
    lines = ["| model | way | steps | attention | head | both |", "|---|---|---|---|---|---|"]
    for model, of_model in runs().items():
        dense, base = (of_model["none", way]["figures"] for way in ("dense", "continue"))
        lines.append(f"| {model} | dense | {dense['step']} | {dense['loss']:.3f} | | |")
        lines.append(f"| {model} | dense, trained on | {base['step']} | **{base['loss']:.3f}** | | |")
        for way in CONVERSIONS:
            found = [of_model[place, way] for place in ("attention", "head", "both")]
            cells = [f"{record['figures']['loss']:.3f} ({excess(record, of_model):+.1%})" for record in found]
            lines.append(f"| {model} | {way} | {found[0]['figures']['step']} | {' | '.join(cells)} |")
    lines += [
        "",
        "| model | sparse | way | tokens possible | gold token impossible | accuracy | sparsemax score | "
        "loss at u = 0.1 % | at 10 % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model, of_model in runs().items():
        for (place, way), record in of_model.items():
            if place in ("none", "head"):
                figures = record["figures"]
                lines.append(
                    f"| {model} | {'-' if place == 'none' else place} | {way} | {figures['support']:.0f} | "
                    f"{figures['missed']:.1%} | {figures['accuracy']:.1%} | {figures['sparsemax_score']:.3f} | "
                    f"{figures['loss_at']['0.001']:.3f} | {figures['loss_at']['0.1']:.3f} |"
                )
    reached = [
        f"{model}, sparse {place} ({excess(record, of_model):+.2%})"
        for model, of_model in runs().items()
        for (place, way), record in of_model.items()
        if way == "anneal" and excess(record, of_model) <= 0.01
    ]
    lines += [
        "",
        f"Within 1 % of the dense model trained on, after calibrate and anneal: {'; '.join(reached) or 'none'}.",
    ]
    records = [record for of_model in runs().values() for record in of_model.values()]
    settings = records[0]["settings"]
    learned = []
    for model, of_model in runs().items():
        data = of_model["none", "dense"]["figures"]["data"]
        learned.append(
            f"{model}: {data['what']}, {data['train_rows']:,} rows to train on, {data['dev_rows']:,} held out, "
            f"{data['vocabulary']:,} tokens, {data['parameters']:,} parameters"
        )
    lines += [
        "",
        f"{'; '.join(learned)}. entmax, alpha {settings['alpha']:g}; {settings['steps']} and "
        f"{settings['conversion_steps']} steps of {settings['batch_size']} rows, alpha annealed over "
        f"{settings['anneal_over']:.0%} of the latter; seed {settings['seed']}. {origin(records)}",
    ]
    return "\n".join(lines)


PLACES = {"attention": ("attn",), "head": ("head",), "both": ("attn", "head")}
NAMES = {"gpt2": "GPT-2", "bart": "BART"}


@cards
def converted_models() -> Iterator[Card]:
    """A card for each model and place that is sparse, of the way that trains with alpha annealed."""
    for model, of_model in runs().items():
        for place, parts in PLACES.items():
            record = of_model[place, "anneal"]
            settings, data = record["settings"], record["figures"]["data"]
            choice = {"name": "entmax", "alpha": settings["alpha"]}
            rows = {"dense, trained on": of_model["none", "continue"]["figures"]}
            rows |= {way: of_model[place, way]["figures"] for way in CONVERSIONS}
            config = {"version": 1, "attn": None, "head": None, "fused_loss": False} | dict.fromkeys(parts, choice)
            where = {"attention": "attention", "head": "the head", "both": "attention and the head"}[place]
            yield Card(
                name=f"conversion-{model}-{place}",
                title=f"A {NAMES[model]}-like model converted to entmax in {where}",
                task="text-generation" if model == "gpt2" else "text2text-generation",
                what=f"A model of {data['parameters']:,} parameters, trained with softmax and then on with entmax "
                f"(alpha {settings['alpha']:g}) in {where}, while alpha moves there from 1 after a calibration "
                "(`anneal`). Beside it the other ways to convert, for as many steps.",
                data=f"{data['what']}: {data['train_rows']:,} rows to train on, {data['dev_rows']:,} held out; "
                f"{settings['steps']} and {settings['conversion_steps']} steps of {settings['batch_size']} rows; seed "
                f"{settings['seed']}.",
                measures=(
                    Measure("loss (eps-perplexity, nats a token)", "loss", ".3f", "lower"),
                    Measure("accuracy", "accuracy", ".1%", "higher"),
                    Measure("sparsemax score", "sparsemax_score", ".3f", "higher"),
                    Measure("gold token impossible", "missed", ".1%", "lower"),
                    Measure("tokens possible", "support", ".0f"),
                ),
                rows=rows,
                own="anneal",
                dense="dense, trained on",
                command=f"python recipes/conversion.py --data {settings['data']} --only {record['run']}",
                weights=f"out/conversion/runs/{record['run']}-{settings['seed']}/model",
                limits="A model of this size, trained for minutes, shows what a conversion costs, and no more. One "
                "run: differences of a hundredth mean nothing.",
                result=record,
                config=config,
                support={"head_support": record["figures"]["support"]} if "head" in parts else {},
            )
