"""The measured rows, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from ._case import Row

DIGITS = 5


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
    lines = ",\n".join(f"  {json.dumps(_entry(row))}" for row in rows)
    path.write_text(f'{{\n "machine": {json.dumps(machine)},\n "rows": [\n{lines}\n ]\n}}\n')


def _entry(row: Row) -> dict[str, object]:
    """Fields of a row that are not empty, with numbers of ``DIGITS`` digits."""
    entry = {**dataclasses.asdict(row), "verdict": row.verdict}
    return {
        key: [_short(number) for number in value] if key == "quartiles" else _short(value)
        for key, value in entry.items()
        if value not in (None, "")
    }


def _short(value: object) -> object:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
