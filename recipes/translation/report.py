"""Report of the translation recipe: comparison, example and its pictures, blocks of the documentation, model cards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import hf_sparse

from ..lib import markdown
from ..lib.blocks import block, read
from ..lib.card import Card, Measure, alike
from ..lib.environment import origin
from ..lib.records import Figures, Record
from ..lib.seeds import by_run, over_seeds
from .data import sides

RESULT, FROM_SCRATCH, CONVERGED = (
    f"recipes/translation/results/{name}.json" for name in ("multi30k", "multi30k_from_scratch", "multi30k_converged")
)
MEASURES = (
    Measure("BLEU", "bleu", ".2f", "higher"),
    Measure("chrF", "chrf", ".2f", "higher"),
    Measure("REP (repetition)", "rep", ".2f", "lower"),
    Measure("DROP (omission)", "drop", ".2f", "lower"),
    Measure("source tokens attended a step", "attended_at_a_step", ".1f"),
)
COLUMNS = (
    "cross-attention",
    "fertility",
    "search",
    "BLEU",
    "chrF",
    "REP",
    "REP, 5 worst left out",
    "DROP",
    "tokens attended a step",
    "at all",
)


def report(results: dict[str, Any], out: Path) -> None:
    """Print the comparison and the example, and draw how both systems attend in that."""
    systems = [record for record in results["runs"] if is_system(record)]
    if systems:
        rows = systems[0]["figures"]["rows"]
        print(
            f"\n{rows['train']:,} pairs to train on, {rows['dev']:,} to tune penalties on, {rows['test']:,} to test "
            f"on{test_text(systems[0]['figures'])}; {rows['vocabulary']:,} subwords\n\n{comparison(systems)}"
        )
    example = next((record["figures"] for record in results["runs"] if record["run"] == "example"), None)
    if example:
        print(f"\n{example_text(example)}")
        for name, seen in example["attention"].items():
            path = out / f"attention_{name}.png"
            hf_sparse.plot_attention(
                torch.tensor(seen["weights"]), seen["keys"], seen["queries"], title=name, path=path
            )


def test_text(figures: Figures) -> str:
    """The name of the test set in brackets; nothing where it has none, or a record is older than such names."""
    name = figures.get("test_set")
    return f" ({name})" if name else ""


def is_system(record: Record) -> bool:
    """Whether a run is a system that was measured, not a part that systems share."""
    return "bleu" in record["figures"]


def comparison(records: Sequence[Record]) -> str:
    """Figures of all systems, one line per system; only systems with a model of their own have a training time."""
    names = [
        f"{record['run']}, {record['settings']['seed']}" if record["settings"]["seed"] else record["run"]
        for record in records
    ]
    width = max(map(len, ["system", *names]))
    lines = [f"{'system':<{width}}   BLEU   chrF    REP   DROP   tokens/step   tokens attended   training   decoding"]
    for name, record in zip(names, records):
        row = record["figures"]
        training = f"{row['training_seconds']:.0f}s" if "training_seconds" in row else ""
        lines.append(
            f"{name:<{width}} {row['bleu']:>6.2f} {row['chrf']:>6.2f} {row['rep']:>6.2f} {row['drop']:>6.2f} "
            f"{row['attended_at_a_step']:>13.2f} {row['attended_share']:>17.1%} {training:>10} "
            f"{row['decoding_seconds']:>9.0f}s"
        )
    return "\n".join(lines)


def example_text(example: Figures) -> str:
    """Source, reference and translations of the example."""
    lines = [f"source      {example['source']}", f"reference   {example['reference']}"]
    return "\n".join([*lines, *(f"{name:<11} {text}" for name, text in example["translations"].items())])


def condensed(figures: Figures) -> Figures:
    """The figures that git keeps: the last loss instead of the training log, and no matrices of attention."""
    left_out = {"training_log", "attention"} if "translations" in figures else {"training_log"}
    kept = {name: value for name, value in figures.items() if name not in left_out}
    losses = [entry["loss"] for entry in figures.get("training_log", ()) if "loss" in entry]
    return kept | ({"final_loss": losses[-1]} if losses else {})


def has_coverage(row: Figures) -> bool:
    """Whether the cross-attention of a system has coverage vectors."""
    return "coverage" in row["config"]["attn"]["cross"]


def card(record: Record, records: Sequence[Record]) -> Card | None:
    """Model card of one system, compared with all others; None for parts that systems share."""
    if not is_system(record):
        return None
    row, settings = record["figures"], record["settings"]
    bounds = {None: "", "guided": ", with guided fertilities", "predicted": ", with predicted fertilities"}
    extras = bounds.get(row["fertility"], f", with a fertility of {row['fertility']} for every token")
    extras += " in training as at test" if row.get("throughout") else ""
    extras += ", with coverage vectors" if has_coverage(row) else ""
    swap = "" if row["attention"] == "softmax" else f", with {row['attention']} in place of softmax in cross-attention"
    source, target = sides(settings["data"], settings["source"], settings["target"])
    start = (
        "It resumes from a model trained with softmax." if settings["base_steps"] else "It is trained from scratch."
    )
    corpora = {"": "The embedded sample", "multi30k": "Multi30k"}
    return Card(
        name=f"translation-{record['run']}",
        title=f"Translation with {row['attention']} cross-attention{extras}",
        task="translation",
        what=f"A small encoder-decoder ({row['architecture']}, {row['parameters']:,} parameters) from {source} to "
        f"{target}{swap}{extras} (Malaviya et al. 2018). {start}",
        data=f"{corpora.get(settings['data'], settings['data'])}: {row['rows']['train']:,} pairs to train on, "
        f"{row['rows']['test']:,} to test on{test_text(row)}; "
        f"{settings['base_steps']:,} steps with softmax, {settings['steps']} with its own attention, of "
        f"{settings['batch_size']} pairs; {settings['beams']} beams; seed {settings['seed']}.",
        measures=MEASURES,
        rows={other["run"]: other["figures"] for other in alike(record, records, "makes") if is_system(other)},
        own=record["run"],
        dense="softmax",
        limits="One run, trained in minutes: half a point of BLEU means nothing, and the model is no use as a "
        f"translator.{' All systems share their beginning, which favours softmax.' if settings['base_steps'] else ''}",
        record=record,
        config=row["config"],
    )


def systems(path: str) -> dict[str, list[Record]]:
    """Records of the systems of a summary by name, one for each seed."""
    return by_run(record for record in read(path)["runs"] if is_system(record))


def table(records: dict[str, list[Record]]) -> str:
    """A table of the documentation, one line per system: means over its seeds, with their spread."""
    rows = []
    for seeds in records.values():
        row = seeds[0]["figures"]
        fertility = row["fertility"] if isinstance(row["fertility"], str | None) else f"{row['fertility']:g}"
        fertility = f"{fertility}, in training too" if row.get("throughout") else fertility
        search = _search([record["figures"]["penalty"] for record in seeds])
        attention = f"{row['attention']}{', coverage vector' if has_coverage(row) else ''}"
        figures = [
            over_seeds([record["figures"][name] for record in seeds], form)
            for name, form in (
                ("bleu", ".2f"),
                ("chrf", ".2f"),
                ("rep", ".2f"),
                ("rep_without_worst", ".2f"),
                ("drop", ".2f"),
                ("attended_at_a_step", ".1f"),
            )
        ]
        share = f"{fmean(record['figures']['attended_share'] for record in seeds):.0%}"
        rows.append([attention, fertility or "", search, *figures, share])
    return markdown.table(COLUMNS, rows)


def _search(penalties: Sequence[dict[str, float] | None]) -> str:
    """How translations are searched for, with the weights of the penalty, which seeds may tune to different values."""
    if None in penalties:
        return "beam"
    weights = {
        name: " or ".join(f"{value:g}" for value in sorted({penalty[name] for penalty in penalties if penalty}))
        for name in ("beta", "alpha")
    }
    return "penalty, " + ", ".join(f"{name} {values}" for name, values in weights.items())


def _seeds(records: dict[str, list[Record]]) -> str:
    counts = sorted({len(seeds) for seeds in records.values()})
    return "one seed" if counts == [1] else f"{' to '.join(map(str, counts))} seeds (mean ± standard deviation)"


@block
def translation() -> str:
    """All systems on Multi30k, and one sentence by softmax and constrained sparsemax."""
    result, records = read(RESULT), systems(RESULT)
    first = records["softmax"][0]
    settings, versions, figures = (first[key] for key in ("settings", "versions", "figures"))
    rows = figures["rows"]
    example = next(record["figures"] for record in result["runs"] if record["run"] == "example")
    sentences = {"source": example["source"], "reference": example["reference"], **example["translations"]}
    parts = [
        table(records),
        f"{rows['train']:,} pairs, {rows['vocabulary']:,} subwords, {figures['parameters']:,} "
        f"parameters; {settings['base_steps']:,} steps with softmax that all systems share, then {settings['steps']} "
        f"of each system's own, of {settings['batch_size']} pairs; {rows['test']:,} test sentences, "
        f"{settings['beams']} beams; {_seeds(records)}. BLEU and chrF by sacrebleu {versions['sacrebleu']}; REP "
        "and DROP on lower-cased words; the weights of the penalty are those of highest BLEU on "
        f"{rows['dev']} development sentences. {origin(result['runs'])}",
        "The test sentence with translations short enough to draw in which softmax repeats most beyond constrained "
        "sparsemax:",
        markdown.table(["", ""], sentences.items()),
    ]
    return "\n\n".join(parts)


def _by_themselves(path: str) -> str:
    """Systems on Multi30k that share no training."""
    records = systems(path)
    first = records["softmax"][0]
    settings, rows = first["settings"], first["figures"]["rows"]
    losses, seconds = (
        ", ".join(
            f"{name} {fmean(record['figures'][key] for record in seeds):{form}}" for name, seeds in records.items()
        )
        for key, form in (("final_loss", ".2f"), ("training_cpu_seconds", ".0f"))
    )
    products = ", products in bfloat16" if settings.get("bf16") else ""
    return (
        f"{table(records)}\n\n"
        f"Each from the same untrained weights, {settings['steps']:,} steps of {settings['batch_size']} pairs"
        f"{products}, sparsemax and csparsemax at temperature {settings['temperature']:g}; {rows['test']:,} test "
        f"sentences, {settings['beams']} beams; {_seeds(records)}; all else as above. Training loss over the last "
        f"steps: {losses}. CPU seconds of training: {seconds}. {origin(read(path)['runs'])}"
    )


@block
def translation_from_scratch() -> str:
    """After few steps."""
    return _by_themselves(FROM_SCRATCH)


@block
def translation_converged() -> str:
    """After more of them."""
    return _by_themselves(CONVERGED)
