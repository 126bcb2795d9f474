"""The translation sweep: every map at the output and in attention, from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from ._blocks import block, read
from ._cards import Card, Measure, cards

RESULT, MULTI30K = "recipes/results/translation_sweep.json", "recipes/results/translation_sweep_multi30k.json"
DATA = {"": "The embedded sample (`data/README.md`)", "multi30k": "Multi30k"}
MEASURES = (
    Measure("BLEU", "bleu", ".2f", "higher"),
    Measure("chrF", "chrf", ".2f", "higher"),
    Measure("empty string preferred", "empty_preferred", ".1%", "lower"),
    Measure("tokens possible a step", "head_support", ",.1f"),
    Measure("source tokens attended", "attended", ".1f"),
)


def records(*patterns: str, result: str = RESULT) -> list[dict[str, Any]]:
    """The runs whose names match, in the order of the study."""
    found = read(result)["runs"]
    return [record for record in found if any(fnmatchcase(record["run"], pattern) for pattern in patterns)]


def softmax_of(record: dict[str, Any], result: str = RESULT) -> dict[str, Any]:
    """The softmax run of the same direction."""
    return records("en-de-softmax" if record["settings"]["reverse"] else "softmax", result=result)[0]


def map_text(choice: Any) -> str:
    """A map as ``sparsify`` is given it, in words."""
    if not choice:
        return "softmax"
    if isinstance(choice, str):
        return choice
    if "cross" in choice:
        return f"cross: {map_text(choice['cross'])}"
    settings = ", ".join(f"{name} {value:g}" for name, value in choice.items() if name != "name")
    return f"{choice['name']} ({settings})"


def table(*patterns: str, result: str = RESULT) -> str:
    """The figures of some runs; speed as a multiple of softmax's in the same direction."""
    heading = ["run", "output", "attention", *(measure.label for measure in MEASURES), "training speed"]
    lines = [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|"]
    for record in records(*patterns, result=result):
        figures, settings = record["figures"], record["settings"]
        speed = figures["tokens_per_cpu_second"] / softmax_of(record, result)["figures"]["tokens_per_cpu_second"]
        cells = [record["run"], map_text(settings["head"]), map_text(settings["attention"])]
        cells += [*(measure.text(figures) for measure in MEASURES), f"{speed:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@block
def sweep_maps() -> str:
    """Softmax, entmax, sparsemax and alpha-ReLU, in both directions, with smoothed targets too."""
    names = ("softmax", "entmax15", "sparsemax", "output-entmax15", "output-sparsemax", "output-alpha_relu")
    return f"{table(*names, *(f'en-de-{name}' for name in names), '*-smoothed')}\n\n{origin()}"


@block
def sweep_alpha() -> str:
    """A finer grid of alpha at the output, and in attention, the other at 1.5."""
    return table("output-entmax15", "output-[12]*", "attention-*", "entmax15")


@block
def sweep_control() -> str:
    """Cross-attention with one number for its sparsity."""
    return table("softmax", "cross-*")


@block
def sweep_multi30k() -> str:
    """Real sentences."""
    return f"{table('*', result=MULTI30K)}\n\n{origin(MULTI30K)}"


@block
def sweep_relu() -> str:
    """alpha-ReLU: thresholds, how many next tokens are right early and late, and what its weights sum to."""
    lines = [
        "| run | tau | right next tokens at a quarter | at a half | at the end | BLEU | sum of the weights |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in records("output-alpha_relu", "output-alpha_relu-*", "en-de-output-alpha_relu"):
        figures = record["figures"]
        curve = figures["curve"]
        early = [curve[len(curve) * part // 4]["accuracy"] for part in (1, 2)] + [curve[-1]["accuracy"]]
        sums = figures["head_sum"]
        lines.append(
            f"| {record['run']} | {figures['config']['head']['tau']:.3g} | {' | '.join(f'{a:.1%}' for a in early)} | "
            f"{figures['bleu']:.2f} | {sums['mean']:.2f} ± {sums['std']:.2f} |"
        )
    return "\n".join(lines)


@block
def sweep_training() -> str:
    """How the threshold of 1.5-entmax and the norm of the logits move."""
    lines = [
        "| run | threshold, untrained | at the end | norm of the logits, untrained | at the end |",
        "|---|---|---|---|---|",
    ]
    for record in records(
        "softmax", "entmax15", "sparsemax", "output-entmax15", "output-sparsemax", "output-alpha_relu"
    ):
        first, *_, last = record["figures"]["curve"]
        lines.append(
            f"| {record['run']} | {first['threshold']:.2f} | {last['threshold']:.2f} | {first['logit_norm']:.0f} | "
            f"{last['logit_norm']:.0f} |"
        )
    return "\n".join(lines)


def origin(result: str = RESULT) -> str:
    """Settings and surroundings of a study."""
    everything = records("*", result=result)
    first, minutes = everything[0], sum(record["cpu_seconds"] for record in everything) / 60
    settings, rows, versions = first["settings"], first["figures"]["rows"], first["versions"]
    commits = sorted({(record["commit"] or "unknown")[:10] for record in everything})
    return (
        f"{DATA[settings['data']]}, {rows['train']:,} pairs, {rows['vocabulary']:,} subwords, "
        f"{first['figures']['parameters']:,} parameters; {settings['steps']} steps of {settings['batch_size']} pairs "
        f"from scratch, peak learning rate {settings['lr']:g}, seed {settings['seed']}; {rows['test']} test "
        f"sentences, {settings['beams']} beams, no length penalty. {len(everything)} runs, {minutes:.0f} CPU minutes "
        f"on one thread ({first['hardware']['device']}), torch {versions['torch']}, transformers "
        f"{versions['transformers']}, commits {', '.join(commits)}."
    )


@cards
def swept_models() -> Iterator[Card]:
    """A card for every sparse model of the sweep."""
    for result, prefix in ((RESULT, "translation-sweep"), (MULTI30K, "multi30k-sweep")):
        yield from cards_of(result, prefix)


def cards_of(result: str, prefix: str) -> Iterator[Card]:
    """The cards of one study."""
    for record in records("*", result=result):
        figures, settings, dense = record["figures"], record["settings"], softmax_of(record, result)
        if figures["config"] is None:
            continue
        chosen = " ".join(f"{name}={settings[name]}" for name in ("vocabulary", "steps", "batch_size", "test_rows"))
        data = f"--data {settings['data']} --set {chosen} "
        maps = f"{map_text(settings['head'])} at the output and {map_text(settings['attention'])} in attention"
        smoothed = f", targets smoothed by {settings['label_smoothing']:g}" if settings["label_smoothing"] else ""
        direction = "English to German" if settings["reverse"] else "German to English"
        yield Card(
            name=f"{prefix}-{record['run']}",
            title=f"{direction} with {maps}",
            task="translation",
            what=f"A small encoder-decoder (MarianMTModel, {figures['parameters']:,} parameters) trained from "
            f"scratch, {direction}, with {maps}{smoothed}.",
            data=f"{DATA[settings['data']].split(' (')[0]}: {figures['rows']['train']:,} pairs to train "
            f"on, {figures['rows']['test']} to test on; "
            f"{settings['steps']} steps of {settings['batch_size']} pairs; seed {settings['seed']}.",
            measures=MEASURES,
            rows={dense["run"]: dense["figures"], record["run"]: figures},
            own=record["run"],
            dense=dense["run"],
            command=f"python recipes/translation_sweep.py {data if settings['data'] else ''}--only {record['run']}",
            weights=f"out/translation_sweep/runs/{record['run']}-{settings['seed']}/model",
            limits="Trained for minutes to compare maps: not converged, and no use as a translator. One run: a "
            "point of BLEU means nothing.",
            result=record,
            config=figures["config"],
            support={"head_support": figures["head_support"]} if figures["config"]["head"] else {},
        )
