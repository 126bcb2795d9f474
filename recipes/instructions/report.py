"""Report of the instructions recipe: accuracy and diversity of each loss, over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ..lib import markdown
from ..lib.blocks import block, read
from ..lib.environment import origin
from ..lib.records import Record
from ..lib.seeds import by_run, over_seeds

RESULT = "recipes/instructions/results/captions.json"
COLUMNS = {
    "accuracy": ("likeliest token right", ".1%"),
    "asked": ("words asked for, greedy", ".1%"),
    "asked_drawn": ("words asked for, drawn", ".1%"),
    "distinct_1": ("distinct-1", ".3f"),
    "distinct_2": ("distinct-2", ".3f"),
    "loss": ("loss, nats a token", ".3f"),
    "entropy": ("entropy, nats", ".2f"),
}
AIM = ("accuracy", "asked", "distinct_1", "distinct_2")


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table and the verdict."""
    print("\n".join([_table(results["runs"]), "", *_verdicts(results["runs"])]))


@block
def instructions() -> str:
    """Each loss over seeds, and whether it is ahead of cross-entropy."""
    runs = read(RESULT)["runs"]
    return "\n".join([_table(runs), "", *_verdicts(runs), "", origin(runs)])


@block
def instructions_example() -> str:
    """One prompt, and some answers to it."""
    rows = []
    groups = by_run(read(RESULT)["runs"])
    for name, records in groups.items():
        example = records[0]["figures"]["example"]
        greedy, *drawn = (" ".join(text.split()) for text in (example["greedy"], *example["drawn"][:2]))
        rows.append([name, greedy, "<br>".join(drawn)])
    prompt = next(iter(groups.values()))[0]["figures"]["example"]["prompt"]
    return f"`{prompt.splitlines()[0]}`\n\n{markdown.table(['loss', 'greedy', 'drawn'], rows)}"


def _table(runs: Sequence[Record]) -> str:
    rows = []
    for name, records in by_run(runs).items():
        cells = [
            over_seeds([record["figures"][column] for record in records], form)
            for column, (_, form) in COLUMNS.items()
        ]
        rows.append([name, str(len(records)), *cells])
    return markdown.table(["loss", "seeds", *(title for title, _ in COLUMNS.values())], rows)


def _verdicts(runs: Sequence[Record]) -> list[str]:
    """For each sparse loss: what of the aim it is ahead in, on the mean over seeds."""
    groups = by_run(runs)
    dense = groups.get("cross-entropy")
    if dense is None:
        return []
    lines = []
    for name, records in groups.items():
        if records is dense:
            continue
        ahead = [column for column in AIM if _mean(records, column) > _mean(dense, column)]
        told = ", ".join(COLUMNS[column][0] for column in ahead) or "nothing"
        lines.append(
            f"- `{name}`, aim: ahead of cross-entropy in accuracy and in distinct-n. Ahead in: {told}; "
            f"{'met' if len(ahead) == len(AIM) else 'missed'}."
        )
    return lines


def _mean(records: Sequence[Record], column: str) -> float:
    return fmean(record["figures"][column] for record in records)
