"""Summaries: the part of a study's results that is kept in git, one line of JSON per run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .records import Figures, Record, read_json

LEFT_OUT = ("seconds", "peak_memory")
SHARED = ("settings", "versions", "hardware", "commit")


def write_summary(path: Path, records: Sequence[Record], condensed: Callable[[Figures], Figures]) -> None:
    """Write the summary of some records; a ``note`` in the file that is there stays.

    Args:
        path: of the file.
        records: of the runs; see ``record_of``.
        condensed: picks the figures to keep.
    """
    note = {"note": read_json(path)["note"]} if path.is_file() and "note" in read_json(path) else {}
    kept = [
        {key: value for key, value in record.items() if key not in LEFT_OUT}
        | {"figures": condensed(record["figures"])}
        for record in records
    ]
    shared, runs = factored(kept)
    head = [f' "{key}": {_line(value)},' for key, value in (note | {"shared": shared}).items()]
    lines = ",\n".join(f"  {_line(run)}" for run in runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["{", *head, ' "runs": [', lines, " ]", "}", ""]), encoding="utf-8")


def factored(records: Sequence[Record]) -> tuple[Record, list[Record]]:
    """Split records into the entries of ``SHARED`` that are equal in all of them, and the rest of each.

    >>> runs = [{"run": "a", "settings": {"seed": 0, "lr": 0.1}}, {"run": "b", "settings": {"seed": 1, "lr": 0.1}}]
    >>> factored(runs)
    ({'settings': {'lr': 0.1}}, [{'run': 'a', 'settings': {'seed': 0}}, {'run': 'b', 'settings': {'seed': 1}}])
    """
    groups = [part for part in SHARED if all(isinstance(record.get(part), dict) for record in records)]
    shared = _common([{part: record[part] for part in SHARED if part in record} for record in records])
    shared |= {part: _common([record[part] for record in records]) for part in groups}
    return shared, [_without(record, shared) for record in records]


def merged(shared: Record, rest: Sequence[Record]) -> list[Record]:
    """The records that ``factored`` split.

    >>> merged({"settings": {"lr": 0.1}}, [{"run": "a", "settings": {"seed": 0}}, {"run": "b"}])
    [{'settings': {'lr': 0.1, 'seed': 0}, 'run': 'a'}, {'settings': {'lr': 0.1}, 'run': 'b'}]
    """
    groups = [part for part, value in shared.items() if isinstance(value, dict)]
    return [shared | record | {part: shared[part] | record.get(part, {}) for part in groups} for record in rest]


def _common(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first, *others = records
    return {
        key: value for key, value in first.items() if all(key in other and other[key] == value for other in others)
    }


def _without(record: Record, shared: Record) -> Record:
    rest: Record = {}
    for key, value in record.items():
        if isinstance(shared.get(key), dict):
            own = {name: entry for name, entry in value.items() if name not in shared[key]}
            rest |= {key: own} if own else {}
        elif key not in shared:
            rest[key] = value
    return rest


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
