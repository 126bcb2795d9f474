"""The language-model recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ._blocks import block, read
from ._cards import Card, Measure, cards
from ._studies import origin

RESULT = "recipes/results/language_modelling.json"
MEASURES = (
    Measure("eps-perplexity", "eps_perplexity", ".1f", "lower"),
    Measure("sparsemax score", "sparsemax_score", ".3f", "higher"),
    Measure("Jensen-Shannon (nats)", "jensen_shannon", ".3f", "lower"),
    Measure("tokens missed", "missed", ".1%", "lower"),
    Measure("tokens possible", "support", ".0f"),
)
CONVERSIONS = {"none": "maps replaced, no training", "lora": "LoRA", "full": "all weights trained on"}


@block
def language_fit() -> str:
    """How well what text is drawn from fits held-out text."""
    measures = (*MEASURES, Measure("accuracy", "accuracy", ".1%", "higher"))
    heading = ["head", "attention", "drawn from", "perplexity", *(measure.label for measure in measures)]
    lines = [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|"]
    for run in _trained():
        for decoding, figures in run["figures"]["decodings"].items():
            perplexity = "-" if figures["perplexity"] is None else f"{figures['perplexity']:.1f}"
            drawn = "all of it" if decoding == "sampling" else decoding
            cells = [run["settings"]["head"], run["settings"]["attention"], drawn, perplexity]
            lines.append(f"| {' | '.join(cells + [measure.text(figures) for measure in measures])} |")
    return "\n".join(lines)


@block
def language_repetition() -> str:
    """How much what is drawn repeats itself, beside human text."""
    lines = ["| head | attention | drawn from | REP | wREP | distinct-1 | distinct-2 | distinct-3 |", "|---" * 8 + "|"]
    human = _trained()[0]["figures"]

    def row(start: list[str], rep: float, wrep: float | None, written: dict[str, Any]) -> str:
        shares = [f"{written['distinct'][n]:.3f}" for n in ("1", "2", "3")]
        return f"| {' | '.join([*start, f'{rep:.1%}', '-' if wrep is None else f'{wrep:.1%}', *shares])} |"

    lines.append(row(["human text", "", ""], human["human"]["rep"], None, human["written"]["human"]))
    for run in _trained():
        for decoding, figures in run["figures"]["decodings"].items():
            drawn = "all of it" if decoding == "sampling" else decoding
            start = [run["settings"]["head"], run["settings"]["attention"], drawn]
            lines.append(row(start, figures["rep"], figures["wrep"], run["figures"]["written"][decoding]))
    return "\n".join(lines)


@block
def language_best() -> str:
    """For every measure the best way to draw from softmax beside the best sparse head."""
    human = _trained()[0]["figures"]
    rep, different = human["human"]["rep"], human["written"]["human"]["distinct"]["2"]
    criteria: list[tuple[str, str, str, Callable[[float], float]]] = [
        ("eps-perplexity, lowest", "eps_perplexity", ".1f", lambda value: value),
        ("sparsemax score, highest", "sparsemax_score", ".3f", lambda value: -value),
        ("Jensen-Shannon, lowest (nats)", "jensen_shannon", ".3f", lambda value: value),
        (f"REP, nearest to human text ({rep:.1%})", "rep", ".1%", lambda value: abs(value - rep)),
        (
            f"distinct-2, nearest to human text ({different:.3f})",
            "distinct",
            ".3f",
            lambda value: abs(value - different),
        ),
    ]
    lines = ["| measure | softmax | sparse |", "|---|---|---|"]
    for label, key, form, cost in criteria:
        cells = []
        for dense in (True, False):
            rows = {name: row[key] for name, is_dense, row in _drawn() if is_dense == dense}
            best = min(rows, key=lambda name: cost(rows[name]))
            cells.append(f"{best}: {rows[best]:{form}}")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


@block
def language_conversion() -> str:
    """A trained softmax model made sparse: with no training, with LoRA, and trained on wholly."""
    converted = [run for run in _runs() if run["settings"]["conversion"]]
    lines = [
        f"| | head | weights trained | {' | '.join(measure.label for measure in MEASURES)} |",
        "|---" * (3 + len(MEASURES)) + "|",
    ]
    for run in converted:
        figures, settings = run["figures"], run["settings"]
        dense = settings["head"] == "softmax"
        way = "softmax, trained on" if dense else CONVERSIONS[settings["conversion"]]
        cells = [way, settings["head"], f"{figures['trained'] / figures['parameters']:.1%}"]
        cells += [measure.text(figures["decodings"]["sampling"]) for measure in MEASURES]
        lines.append(f"| {' | '.join(cells)} |")
    settings = converted[0]["settings"]
    return "\n".join(
        [
            *lines,
            "",
            f"{settings['conversion_steps']} steps after {settings['steps']} with softmax; LoRA of rank "
            f"{settings['lora_rank']} in every linear layer of every block; sparse models with entmax15 attention.",
        ]
    )


@block
def language_samples() -> str:
    """How models go on from the same beginning."""
    figures = {
        run["run"]: run["figures"]["written"] for run in _trained() if run["settings"]["attention"] == "softmax"
    }
    softmax = figures["softmax"]
    shown = {"human text": softmax["human"]}
    shown |= {f"softmax, {name}": softmax[name] for name in ("sampling", "greedy", "top-k 10", "nucleus 0.9")}
    shown |= {name: written["sampling"] for name, written in figures.items() if name != "softmax"}
    lines = [f"After {_quoted(softmax['beginnings'][1])}", "", "| | |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {_quoted(each['examples'][1])} |" for name, each in shown.items())])


@block
def language_origin() -> str:
    """What was trained, on what, in how much time."""
    runs = _runs()
    first, settings = runs[0]["figures"], runs[0]["settings"]
    return (
        f"{first['data']}, one article in ten held out: {first['train_rows']:,} rows of {settings['context']} tokens "
        f"to train on, {first['tokens']:,} tokens to measure on; {first['vocabulary']:,} tokens in the vocabulary, "
        f"{first['parameters']:,} parameters; {settings['steps']} steps of {settings['batch_size']} rows, learning "
        f"rate {settings['lr']:g}; eps so that one part in {1 / settings['uniform']:.0f} is uniform; repetition "
        f"within {settings['span']} tokens; seed {settings['seed']}. {origin(runs)}"
    )


@cards
def language_models() -> Iterator[Card]:
    """A card for each sparse head with softmax attention, and for the LoRA adapter."""
    runs = {run["run"]: run for run in _runs()}
    dense = {f"softmax, {name}": row for name, row in runs["softmax"]["figures"]["decodings"].items()}
    for name, run in runs.items():
        settings, figures = run["settings"], run["figures"]
        lora = settings["conversion"] == "lora"
        if not lora and (
            settings["conversion"] or settings["head"] == "softmax" or settings["attention"] != "softmax"
        ):
            continue
        others = {"softmax, trained on": runs["softmax-on"]} if lora else {}
        others |= {each: runs[each] for each in ("entmax15-none", "entmax15-full") if lora}
        rows = {each: other["figures"]["decodings"]["sampling"] for each, other in others.items()} or dense
        what = (
            "made sparse in head and attention after its training with softmax, and trained on by a LoRA adapter alone"
            if lora
            else "trained from scratch; text is sampled from the whole of its sparse distribution"
        )
        yield Card(
            name=f"language-model-{name}",
            title=f"A small GPT-2-like language model: {name}",
            task="text-generation",
            what=f"A model of {figures['parameters']:,} parameters with the head {settings['head']}, {what}.",
            data=f"{figures['data']}: {figures['train_rows']:,} rows of {settings['context']} tokens to train on, "
            f"{figures['tokens']:,} held-out tokens; {settings['steps']} steps of {settings['batch_size']} rows; seed "
            f"{settings['seed']}.",
            measures=(*MEASURES, Measure("wREP", "wrep", ".1%", "lower")),
            rows=rows | {name: figures["decodings"]["sampling"]},
            own=name,
            dense=next(iter(rows)),
            command=f"python recipes/language_modelling.py --data {settings['data']} --only {name}",
            weights=f"out/language_modelling/runs/{name}-{settings['seed']}/model",
            limits="A model of this size, trained for seconds, writes no sense. What compares is how well the "
            "distributions fit and how much they repeat. One run: differences of a hundredth mean nothing.",
            result=run,
            config=figures["maps"],
            support={"head_support": figures["decodings"]["sampling"]["support"]},
        )


def _runs() -> list[dict[str, Any]]:
    return read(RESULT)["runs"]


def _trained() -> list[dict[str, Any]]:
    return [run for run in _runs() if not run["settings"]["conversion"]]


def _drawn() -> Iterator[tuple[str, bool, dict[str, float]]]:
    """Every way to draw: its name, whether it is from softmax, and its figures."""
    for run in _trained():
        dense = run["settings"]["head"] == "softmax"
        for name, figures in run["figures"]["decodings"].items():
            distinct = run["figures"]["written"][name]["distinct"]["2"]
            yield f"{run['run']}, {name}" if dense else run["run"], dense, figures | {"distinct": distinct}


def _quoted(text: str) -> str:
    return f"“{text.strip().replace(chr(10), ' / ').replace('|', chr(92) + '|').replace('<', '&lt;')}”"
