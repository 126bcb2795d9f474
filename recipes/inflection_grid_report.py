"""What the inflection grid reports: a table, and a picture of accuracy and of how often one form is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table."""
    print(table(results["runs"]))


def table(records: list[dict[str, Any]]) -> str:
    """One line a run."""
    lines = ["run                                      seed  accuracy   one form   all seen   certified   candidates"]
    for record in records:
        figures = record["figures"]
        lines.append(
            f"{record['run']:<40} {record['settings']['seed']:>4} {figures['accuracy']:>9.1%} {figures['one_form']:>10.1%} "
            f"{figures['all_forms_seen']:>10.1%} {figures['certified']:>11.1%} {figures['head_support']:>12.2f}"
        )
    return "\n".join(lines)
