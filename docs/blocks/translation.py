"""The translation recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._blocks import block, read
from ._cards import Card, Measure, cards


def table(result: dict[str, Any]) -> list[str]:
    """Lines of a table of every system in a result of recipes/translation.py."""
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
    for row in result["systems"]:
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
    return "coverage" in row["settings"]["attn"]["cross"]


@block
def translation() -> str:
    """BLEU, chrF, REP and DROP of every system in the committed result of recipes/translation.py."""
    result = read("recipes/results/multi30k.json")
    data, settings, versions, hardware = (result[key] for key in ("data", "settings", "versions", "hardware"))
    example = result["example"]
    lines = [
        *table(result),
        "",
        f"{data['train_rows']:,} pairs, {data['vocabulary']:,} subwords, {result['systems'][0]['parameters']:,} "
        f"parameters; {settings['base_steps']:,} steps with softmax that all systems share, then {settings['steps']} "
        f"of each system's own, of {settings['batch_size']} pairs; {data['test_rows']:,} test sentences, "
        f"{settings['beams']} beams; seed {settings['seed']}. BLEU and chrF by sacrebleu {versions['sacrebleu']}; REP "
        "and DROP on lower-cased words; the weights of the penalty are those of highest BLEU on "
        f"{data['dev_rows']} development sentences. One thread of a shared machine ({hardware['device']}, "
        f"{hardware['machine']}), torch {versions['torch']}, transformers {versions['transformers']}, commit "
        f"{(result['commit'] or 'unknown')[:10]}. {result['note']}",
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
    result = read("recipes/results/multi30k_from_scratch.json")
    data, settings, versions = (result[key] for key in ("data", "settings", "versions"))
    losses = {row["system"]: row["training_log"][-2]["loss"] for row in result["systems"]}
    cpu = {row["system"]: row["training_cpu_seconds"] for row in result["systems"]}
    lines = [
        *table(result),
        "",
        f"Each from the same untrained weights, {settings['steps']} steps of {settings['batch_size']} pairs; "
        f"{data['test_rows']:,} test sentences, {settings['beams']} beams; seed {settings['seed']}; all else as above."
        f" Training loss over the last steps: {', '.join(f'{name} {loss:.2f}' for name, loss in losses.items())}. "
        f"CPU seconds of training: {', '.join(f'{name} {seconds:.0f}' for name, seconds in cpu.items())}. "
        f"torch {versions['torch']}, transformers {versions['transformers']}, commit "
        f"{(result['commit'] or 'unknown')[:10]}. {result['note']}",
    ]
    return "\n".join(lines)


@cards
def translation_models() -> Iterator[Card]:
    """A card for every model with sparse or constrained cross-attention."""
    result = read("recipes/results/multi30k.json")
    rows = {row["system"]: row for row in result["systems"]}
    data, settings = result["data"], result["settings"]
    for name, row in rows.items():
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
            data=f"Multi30k: {data['train_rows']:,} pairs to train on, {data['test_rows']:,} to test on; "
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
            command=f"python recipes/translation.py --folder multi30k --systems softmax {name}",
            weights=f"out/translation/systems/{name}/model",
            limits="One run, trained in minutes on captions of photographs: half a point of BLEU means nothing, and "
            "the model is no use as a translator. All systems share their beginning, which favours softmax.",
            result=result,
            config=row["settings"],
        )
