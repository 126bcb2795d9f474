"""The parts of the recipe, by name, in the order of its tables."""

from __future__ import annotations

from collections.abc import Sequence

from ..lib.records import Record
from . import (
    attention,
    cache,
    coverage,
    head,
    reactions,
    screened_head,
    sentences,
    trained,
    trained_head,
    whisper_attention,
    whisper_head,
    whisper_times,
    whisper_trained,
)
from .part import Part

PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        attention.PART,
        head.PART,
        coverage.PART,
        trained.PART,
        trained_head.PART,
        cache.PART,
        screened_head.PART,
        *sentences.PARTS,
        reactions.PART,
        whisper_attention.PART,
        whisper_trained.PART,
        whisper_head.PART,
        whisper_times.PART,
    )
}


def part_of(record: Record) -> Part:
    """The part that a run is of."""
    return PARTS[record["settings"]["part"]]


def by_part(records: Sequence[Record]) -> list[tuple[Part, list[Record]]]:
    """The parts that have runs among the records, each with these."""
    runs = {part.name: [record for record in records if part_of(record) is part] for part in PARTS.values()}
    return [(PARTS[name], found) for name, found in runs.items() if found]
