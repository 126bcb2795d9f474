"""The measured rows, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from ._case import Row


def line(row: Row) -> str:
    low, high = row.quartiles
    spread = "" if row.rounds == 1 else f" [{low:.2f}, {high:.2f}]"
    target = "" if row.target is None else f"{row.target:.2f} {row.verdict}"
    noise = f"  ({row.disturbed}/{row.rounds} rounds disturbed)" if row.disturbed else ""
    name = f"  of which {row.part}" if row.part else row.candidate
    return f"  {name:<34}{row.value:>10.1f} {row.unit}{row.ratio:>8.2f}{spread:<16}{target}{noise}".rstrip()


def heading(row: Row) -> str:
    return f"{row.case}; ratio to {row.baseline} [quartiles], target"


def write(path: Path, machine: dict[str, object], rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    results = [{**dataclasses.asdict(row), "verdict": row.verdict} for row in rows]
    path.write_text(json.dumps({"machine": machine, "rows": results}, indent=1) + "\n")
