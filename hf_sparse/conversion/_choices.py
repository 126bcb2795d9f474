"""The maps of a sparse model's attention, by path: what is tried, and how settings have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..attention import attention_sites
from ..config import KINDS, MapConfig

Choices = Mapping[str, MapConfig | None]


def all_softmax(model: Any) -> dict[str, MapConfig | None]:
    """Softmax for every site of a sparse model, by path."""
    return dict.fromkeys(site.path for _, site in attention_sites(model))


def by_layer(model: Any, choices: Choices) -> dict[str, Any]:
    """Maps by path as ``SparseConfig`` has them: by kind, one for each layer."""
    kinds: dict[str, list[MapConfig | None]] = {}
    for _, site in sorted(attention_sites(model), key=lambda entry: entry[1].layer):
        kinds.setdefault(site.kind, []).append(choices.get(site.path))
    return {kind: tuple(kinds[kind]) for kind in KINDS if any(kinds.get(kind, ()))}
