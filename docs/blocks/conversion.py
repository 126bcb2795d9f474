"""The conversion recipe."""

from __future__ import annotations

from collections.abc import Iterator

from ._blocks import block, read
from ._cards import Card, Measure, cards

CONVERSIONS = ("swap", "calibrate", "train", "anneal", "distil", "scratch")


@block
def conversion() -> str:
    """The loss of every conversion beside that of the dense model, and how sparse the annealed models are."""
    result = read("recipes/results/conversion.json")
    rows = {(row["model"], row["place"], row["way"]): row for row in result["rows"]}
    lines = ["| model | way | steps | attention | head | both |", "|---|---|---|---|---|---|"]
    for model in result["data"]:
        dense, base = rows[model, "none", "dense"], rows[model, "none", "continue"]
        lines.append(f"| {model} | dense | {dense['step']} | {dense['loss']:.3f} | | |")
        lines.append(f"| {model} | dense, trained on | {base['step']} | **{base['loss']:.3f}** | | |")
        for way in CONVERSIONS:
            found = [rows[model, place, way] for place in ("attention", "head", "both")]
            cells = [f"{row['loss']:.3f} ({row['loss'] / base['loss'] - 1:+.1%})" for row in found]
            lines.append(f"| {model} | {way} | {found[0]['step']} | {' | '.join(cells)} |")
    lines += [
        "",
        "| model | sparse | way | tokens possible | gold token impossible | accuracy | sparsemax score | "
        "loss at u = 0.1 % | at 10 % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    order = list(result["data"])
    for (model, place, way), row in sorted(rows.items(), key=lambda item: order.index(item[0][0])):
        if place in ("none", "head"):
            lines.append(
                f"| {model} | {'-' if place == 'none' else place} | {way} | {row['support']:.0f} | "
                f"{row['missed']:.1%} | {row['accuracy']:.1%} | {row['sparsemax_score']:.3f} | "
                f"{row['loss_at']['0.001']:.3f} | {row['loss_at']['0.1']:.3f} |"
            )
    reached = [
        f"{model}, sparse {place} ({row['loss'] / rows[model, 'none', 'continue']['loss'] - 1:+.2%})"
        for (model, place, way), row in rows.items()
        if way == "anneal" and row["loss"] <= 1.01 * rows[model, "none", "continue"]["loss"]
    ]
    lines += [
        "",
        f"Within 1 % of the dense model trained on, after calibrate and anneal: {'; '.join(reached) or 'none'}.",
    ]
    settings, hardware, versions = result["settings"], result["hardware"], result["versions"]
    commit = (result["commit"] or "unknown")[:10]
    data = "; ".join(
        f"{model}: {entry['what']}, {entry['train_rows']:,} rows to train on, {entry['dev_rows']:,} held out, "
        f"{entry['vocabulary']:,} tokens, {entry['parameters']:,} parameters"
        for model, entry in result["data"].items()
    )
    seconds = sum(row["cpu_seconds"] for row in result["rows"])
    lines += [
        "",
        f"{data}. entmax, alpha {settings['alpha']:g}; {settings['steps']} and {settings['conversion_steps']} steps "
        f"of {settings['batch_size']} rows, alpha annealed over {settings['anneal_over']:.0%} of the latter; one run "
        f"each, seed {settings['seed']}; {seconds / 60:.0f} minutes of one core ({hardware['device']}), torch "
        f"{versions['torch']}, transformers {versions['transformers']}, commit {commit}.",
    ]
    return "\n".join(lines)


PLACES = {"attention": ("attn",), "head": ("head",), "both": ("attn", "head")}
NAMES = {"gpt2": "GPT-2", "bart": "BART"}


@cards
def converted_models() -> Iterator[Card]:
    """A card for each model and place that is sparse, of the way that trains with alpha annealed."""
    result = read("recipes/results/conversion.json")
    settings = result["settings"]
    choice = {"name": "entmax", "alpha": settings["alpha"]}
    for model, data in result["data"].items():
        found = {(row["place"], row["way"]): row for row in result["rows"] if row["model"] == model}
        for place, parts in PLACES.items():
            rows = {"dense, trained on": found["none", "continue"]}
            rows |= {way: found[place, way] for way in CONVERSIONS}
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
                command=f"python recipes/conversion.py --models {model} --places {place} --ways anneal"
                + (" --text wikitext2/valid.txt" if model == "gpt2" else "")
                + (" --source multi30k/train.de.gz --target multi30k/train.en.gz" if model == "bart" else ""),
                weights=f"out/conversion/models/{model}-{place}-anneal",
                limits="A model of this size, trained for minutes, shows what a conversion costs, and no more. One "
                "run: differences of a hundredth mean nothing.",
                result=result,
                config=config,
                support={"head_support": found[place, "anneal"]["support"]} if "head" in parts else {},
            )
