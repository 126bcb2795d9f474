"""Report of the translation sweep: tables, blocks of the README, model cards."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..lib.blocks import block, read
from ..lib.card import Card, Measure, alike
from ..lib.environment import short_commit
from ..lib.records import Figures, Record
from .pictures import draw

RESULT, MULTI30K = (f"recipes/translation_sweep/results/{name}.json" for name in ("scenes", "multi30k"))
DATA = {"": "The embedded sample (`recipes/data`)", "multi30k": "Multi30k"}
SCORES = ("bleu", "rouge1", "rouge2", "rougeL")
MEASURES = (
    Measure("BLEU", "bleu", ".2f", "higher"),
    Measure("chrF", "chrf", ".2f", "higher"),
    Measure("empty string preferred", "empty_preferred", ".1%", "lower"),
    Measure("tokens possible a step", "head_support", ",.1f"),
    Measure("source tokens attended", "attended", ".1f"),
)


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table and draw the pictures."""
    print(table(results["runs"]))
    draw(results["runs"], out)


def table(records: Sequence[Record]) -> str:
    """Figures of all runs, one line per run."""
    lines = []
    for record in records:
        figures = record["figures"]
        score = " ".join(f"{name} {figures[name]:5.2f}" for name in SCORES if name in figures)
        lines.append(
            f"{record['run']:<32} {score}  empty preferred {figures['empty_preferred']:5.1%}  support "
            f"{figures['head_support']:7.1f}  attended {figures['attended']:5.2f}  "
            f"{figures['tokens_per_cpu_second']:5.0f} tokens/s"
        )
    return "\n".join(lines)


def condensed(figures: Figures) -> Figures:
    """The figures that git keeps: four points of the curve; no log, no histogram, no matrix of attention."""
    left_out = ("curve", "loss", "example", "head_support_histogram")
    curve = figures["curve"]
    points = [curve[0], curve[len(curve) // 4], curve[len(curve) // 2], curve[-1]]
    return {name: value for name, value in figures.items() if name not in left_out} | {"curve": points}


def map_text(map_config: Any) -> str:
    """A map as ``sparsify`` takes it, in words."""
    if not map_config:
        return "softmax"
    if isinstance(map_config, str):
        return map_config
    if "cross" in map_config:
        return f"cross: {map_text(map_config['cross'])}"
    shown = {name: value for name, value in map_config.items() if name not in ("name", "temperature")}
    settings = ", ".join(f"{name} {value:g}" for name, value in shown.items())
    return f"{map_config['name']} ({settings})" if shown else map_config["name"]


def is_dense(record: Record) -> bool:
    """Whether a run is that of softmax alone, without smoothed targets."""
    return not any(record["settings"][name] for name in ("head", "attention", "label_smoothing"))


def card(record: Record, records: Sequence[Record]) -> Card:
    """Model card of one run, compared with softmax of the same direction."""
    figures, settings, config = record["figures"], record["settings"], record["figures"]["config"]
    comparable = alike(record, records, "head", "attention", "label_smoothing")
    dense = next((other for other in comparable if is_dense(other)), record)
    maps = f"{map_text(settings['head'])} at the output and {map_text(settings['attention'])} in attention"
    smoothed = f", targets smoothed by {settings['label_smoothing']:g}" if settings["label_smoothing"] else ""
    languages = {"de": "German", "en": "English"}
    sides = [languages.get(settings[side], settings[side]) for side in ("source", "target")]
    direction = " to ".join(reversed(sides) if settings["reverse"] else sides)
    scored = {measure.key for measure in MEASURES} & set(figures)
    rouge = tuple(Measure(name, name, ".2f", "higher") for name in SCORES[1:] if name in figures)
    return Card(
        name=f"translation-sweep-{record['run']}",
        title=f"{direction} with {maps}",
        task="translation",
        what=f"A small encoder-decoder (MarianMTModel, {figures['parameters']:,} parameters) trained from "
        f"scratch, {direction}, with {maps}{smoothed}.",
        data=f"{DATA.get(settings['data'], settings['data']).split(' (')[0]}: {figures['rows']['train']:,} pairs to "
        f"train on, {figures['rows']['test']} to test on; {settings['steps']} steps of {settings['batch_size']} "
        f"pairs; seed {settings['seed']}.",
        measures=rouge + tuple(measure for measure in MEASURES if measure.key in scored),
        rows={dense["run"]: dense["figures"], record["run"]: figures},
        own=record["run"],
        dense=dense["run"],
        limits="Trained for minutes to compare maps: not converged, and no use as a translator. One run: a "
        "point of BLEU means nothing.",
        record=record,
        config=config,
        support={"head_support": figures["head_support"]} if config and config["head"] else {},
    )


def selected(*patterns: str, result: str = RESULT) -> list[Record]:
    """Records of a summary whose names match a pattern, in the order of the study."""
    return [record for record in read(result)["runs"] if any(fnmatchcase(record["run"], name) for name in patterns)]


def comparison(*patterns: str, result: str = RESULT) -> str:
    """Selected runs as a table of the documentation; speed is relative to softmax of the same direction."""
    heading = ["run", "output", "attention", *(measure.label for measure in MEASURES), "training speed"]
    lines = [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|"]
    for record in selected(*patterns, result=result):
        figures, settings = record["figures"], record["settings"]
        softmax = selected("en-de-softmax" if settings["reverse"] else "softmax", result=result)[0]
        speed = figures["tokens_per_cpu_second"] / softmax["figures"]["tokens_per_cpu_second"]
        cells = [record["run"], map_text(settings["head"]), map_text(settings["attention"])]
        cells += [*(measure.text(figures) for measure in MEASURES), f"{speed:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def origin(result: str = RESULT) -> str:
    """Data, training, hardware and versions of a summary."""
    everything = selected("*", result=result)
    first, minutes = everything[0], sum(record["cpu_seconds"] for record in everything) / 60
    settings, rows, versions = first["settings"], first["figures"]["rows"], first["versions"]
    commits = sorted(set(map(short_commit, everything)))
    return (
        f"{DATA[settings['data']]}, {rows['train']:,} pairs, {rows['vocabulary']:,} subwords, "
        f"{first['figures']['parameters']:,} parameters; {settings['steps']} steps of {settings['batch_size']} pairs "
        f"from scratch, peak learning rate {settings['lr']:g}, seed {settings['seed']}; {rows['test']} test "
        f"sentences, {settings['beams']} beams, no length penalty. {len(everything)} runs, {minutes:.0f} CPU minutes "
        f"on one thread ({first['hardware']['device']}), torch {versions['torch']}, transformers "
        f"{versions['transformers']}, commits {', '.join(commits)}."
    )


@block
def sweep_maps() -> str:
    """Softmax, entmax, sparsemax and alpha-ReLU, in both directions, and with smoothed targets."""
    names = ("softmax", "entmax15", "sparsemax", "output-entmax15", "output-sparsemax", "output-alpha_relu")
    return f"{comparison(*names, *(f'en-de-{name}' for name in names), '*-smoothed')}\n\n{origin()}"


@block
def sweep_alpha() -> str:
    """A finer grid of alpha at the output and in attention, the other place at 1.5."""
    return comparison("output-entmax15", "output-[12]*", "attention-*", "entmax15")


@block
def sweep_control() -> str:
    """Cross-attention whose sparsity one number controls."""
    return comparison("softmax", "cross-*")


@block
def sweep_multi30k() -> str:
    """All runs on Multi30k."""
    return f"{comparison('*', result=MULTI30K)}\n\n{origin(MULTI30K)}"


@block
def sweep_relu() -> str:
    """alpha-ReLU: thresholds, accuracy early and late in training, and the sum of its weights."""
    lines = [
        "| run | tau | right next tokens at a quarter | at a half | at the end | BLEU | sum of the weights |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in selected("output-alpha_relu", "output-alpha_relu-*", "en-de-output-alpha_relu"):
        figures = record["figures"]
        sums, accuracies = figures["head_sum"], [f"{point['accuracy']:.1%}" for point in figures["curve"][1:]]
        lines.append(
            f"| {record['run']} | {figures['config']['head']['tau']:.3g} | {' | '.join(accuracies)} | "
            f"{figures['bleu']:.2f} | {sums['mean']:.2f} ± {sums['std']:.2f} |"
        )
    return "\n".join(lines)


@block
def sweep_training() -> str:
    """Threshold of 1.5-entmax and norm of the logits, before and after training."""
    lines = [
        "| run | threshold, untrained | at the end | norm of the logits, untrained | at the end |",
        "|---|---|---|---|---|",
    ]
    names = ("softmax", "entmax15", "sparsemax", "output-entmax15", "output-sparsemax", "output-alpha_relu")
    for record in selected(*names):
        first, *_, last = record["figures"]["curve"]
        lines.append(
            f"| {record['run']} | {first['threshold']:.2f} | {last['threshold']:.2f} | {first['logit_norm']:.0f} | "
            f"{last['logit_norm']:.0f} |"
        )
    return "\n".join(lines)
