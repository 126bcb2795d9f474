"""The translation recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._blocks import block, read
from ._cards import Card, Measure, cards

RESULT, FROM_SCRATCH = "recipes/results/multi30k.json", "recipes/results/multi30k_from_scratch.json"
Record = dict[str, Any]


def systems(path: str = RESULT) -> dict[str, Record]:
    """The runs that are systems, by name."""
    return {record["run"]: record for record in read(path)["runs"] if "bleu" in record["figures"]}


def table(records: dict[str, Record]) -> list[str]:
    """Lines of a table of every system."""
    columns = (
        "cross-attention",
        "fertility",
        "search",
        "BLEU",
        "chrF",
        "REP",
        "REP, 5 worst left out",
        "DROP",
        "tokens attended a step",
    )
    columns += ("at all",)
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for record in records.values():
        row = record["figures"]
        fertility = row["fertility"] if isinstance(row["fertility"], str | None) else f"{row['fertility']:g}"
        penalty = row["penalty"]
        attention = f"{row['attention']}{', coverage vector' if has_coverage(row) else ''}"
        search = f"penalty, beta {penalty['beta']:g}, alpha {penalty['alpha']:g}" if penalty else "beam"
        lines.append(
            f"| {attention} | {fertility or ''} | {search} | {row['bleu']:.2f} | {row['chrf']:.2f} | "
            f"{row['rep']:.2f} | {row['rep_without_worst']:.2f} | {row['drop']:.2f} | "
            f"{row['attended_at_a_step']:.1f} | {row['attended_share']:.0%} |"
        )
    return lines


def has_coverage(row: dict[str, Any]) -> bool:
    """Whether the cross-attention of a system has coverage vectors."""
    return "coverage" in row["config"]["attn"]["cross"]


def commit(record: Record) -> str:
    """The commit of a run, shortened."""
    return (record["commit"] or "unknown")[:10]


@block
def translation() -> str:
    """BLEU, chrF, REP and DROP of every system in the committed result of recipes/translation.py."""
    result, records = read(RESULT), systems()
    first = records["softmax"]
    settings, versions, hardware, figures = (first[key] for key in ("settings", "versions", "hardware", "figures"))
    rows = figures["rows"]
    example = next(record["figures"] for record in result["runs"] if record["run"] == "example")
    lines = [
        *table(records),
        "",
        f"{rows['train']:,} pairs, {rows['vocabulary']:,} subwords, {figures['parameters']:,} "
        f"parameters; {settings['base_steps']:,} steps with softmax that all systems share, then {settings['steps']} "
        f"of each system's own, of {settings['batch_size']} pairs; {rows['test']:,} test sentences, "
        f"{settings['beams']} beams; seed {settings['seed']}. BLEU and chrF by sacrebleu {versions['sacrebleu']}; REP "
        "and DROP on lower-cased words; the weights of the penalty are those of highest BLEU on "
        f"{rows['dev']} development sentences. One thread of a shared machine ({hardware['device']}, "
        f"{hardware['machine']}), torch {versions['torch']}, transformers {versions['transformers']}, commit "
        f"{commit(first)}. {result['note']}",
        "",
        "The test sentence with translations short enough to draw in which softmax repeats most beyond constrained "
        "sparsemax:",
        "",
        "| | |",
        "|---|---|",
        f"| source | {example['source']} |",
        f"| reference | {example['reference']} |",
        *(f"| {name} | {text} |" for name, text in example["translations"].items()),
    ]
    return "\n".join(lines)


@block
def translation_from_scratch() -> str:
    """The same for systems that share no training."""
    records = systems(FROM_SCRATCH)
    first = records["softmax"]
    settings, versions, rows = first["settings"], first["versions"], first["figures"]["rows"]
    losses = {name: record["figures"]["training_log"][-2]["loss"] for name, record in records.items()}
    cpu = {name: record["figures"]["training_cpu_seconds"] for name, record in records.items()}
    lines = [
        *table(records),
        "",
        f"Each from the same untrained weights, {settings['steps']} steps of {settings['batch_size']} pairs; "
        f"{rows['test']:,} test sentences, {settings['beams']} beams; seed {settings['seed']}; all else as above."
        f" Training loss over the last steps: {', '.join(f'{name} {loss:.2f}' for name, loss in losses.items())}. "
        f"CPU seconds of training: {', '.join(f'{name} {seconds:.0f}' for name, seconds in cpu.items())}. "
        f"torch {versions['torch']}, transformers {versions['transformers']}, commit "
        f"{commit(first)}. {read(FROM_SCRATCH)['note']}",
    ]
    return "\n".join(lines)


@cards
def translation_models() -> Iterator[Card]:
    """A card for every model with sparse or constrained cross-attention."""
    records = systems()
    rows = {name: record["figures"] for name, record in records.items()}
    for name, record in records.items():
        row, settings = record["figures"], record["settings"]
        if row["attention"] == "softmax" or row["penalty"]:
            continue
        bounds = {None: "", "guided": ", with guided fertilities", "predicted": ", with predicted fertilities"}
        fertility = bounds.get(row["fertility"], f", with a fertility of {row['fertility']} for every token")
        fertility += ", with coverage vectors" if has_coverage(row) else ""
        yield Card(
            name=f"translation-{name}",
            title=f"Translation with {row['attention']} cross-attention{fertility}",
            task="translation",
            what=f"A small encoder-decoder ({row['architecture']}, {row['parameters']:,} parameters) from German to "
            f"English, with {row['attention']} in place of softmax in cross-attention{fertility} (Malaviya et al. "
            "2018). It goes on from a model trained with softmax.",
            data=f"Multi30k: {row['rows']['train']:,} pairs to train on, {row['rows']['test']:,} to test on; "
            f"{settings['base_steps']:,} steps with softmax, {settings['steps']} with its own attention, of "
            f"{settings['batch_size']} pairs; {settings['beams']} beams; seed {settings['seed']}.",
            measures=(
                Measure("BLEU", "bleu", ".2f", "higher"),
                Measure("chrF", "chrf", ".2f", "higher"),
                Measure("REP (repetition)", "rep", ".2f", "lower"),
                Measure("DROP (omission)", "drop", ".2f", "lower"),
                Measure("source tokens attended a step", "attended_at_a_step", ".1f"),
            ),
            rows=rows,
            own=name,
            dense="softmax",
            command=f"python recipes/translation.py --data {settings['data']} --only softmax {name}",
            weights=f"out/translation/runs/{name}-{settings['seed']}/model",
            limits="One run, trained in minutes on captions of photographs: half a point of BLEU means nothing, and "
            "the model is no use as a translator. All systems share their beginning, which favours softmax.",
            result=record,
            config=row["config"],
        )
