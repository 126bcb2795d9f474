"""One map for some attention of a model: for a kind of it, for a layer, or for all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .map_config import MapConfig, names_for
from .settings import CoverageVectors, Fixed, Learned

# Keys that the temperature "auto" of attention counts on: a model has no fixed number of them. A quarter of them or
# four times as many change it by a factor of 1.4 at alpha 1.5, and of 2 at alpha 2.
TYPICAL_KEYS = 64


@dataclass(frozen=True)
class AttentionRule:
    """One map for some attention of a model.

    Attributes:
        kind: ``"encoder"``, ``"decoder"`` or ``"cross"``; None for all attention.
        layer: which layer of its kind, from 0; None for all of them.
        map: None keeps softmax.
        coverage: vectors by which keys that received attention before change their scores, or None.
    """

    kind: str | None
    layer: int | None
    map: MapConfig | None
    coverage: CoverageVectors | None = None

    @classmethod
    def parse(cls, kind: str | None, layer: int | None, value: object) -> AttentionRule:
        """Check the map that a user gave for some attention.

        Raises:
            ValueError: see ``MapConfig.parse``; or a map or setting that does not fit attention.
            TypeError: a value of the wrong type.
        """
        role = cls(kind, layer, None).role
        coverage: CoverageVectors | None = None
        if isinstance(value, Mapping) and "coverage" in value:
            coverage = CoverageVectors.parse(value["coverage"], role)
            value = {key: entry for key, entry in value.items() if key != "coverage"}
        map_config = MapConfig.parse(value, role)
        for problem in _attention_problems(map_config, coverage):
            raise ValueError(f"{role}: {problem}")
        if map_config.temperature == "auto":
            map_config = map_config.balanced(TYPICAL_KEYS, role)
        return cls(kind, layer, map_config, coverage)

    @property
    def role(self) -> str:
        """The argument it came from: ``attn``, ``attn['cross']`` or ``attn['cross'][2]``."""
        kind = "" if self.kind is None else f"[{self.kind!r}]"
        return f"attn{kind}{'' if self.layer is None else f'[{self.layer}]'}"

    @property
    def learned_names(self) -> list[str]:
        """Settings that are learned, a number or a vector per head."""
        learned = [] if self.map is None else list(self.map.learned)
        return [*learned, *(["coverage"] if self.coverage else [])]

    @property
    def uncounted(self) -> list[str]:
        """Settings that are learned for each head, where the number of heads is not known yet."""
        learned = {} if self.map is None else self.map.learned
        names = [name for name, value in learned.items() if len(value.initial) == 1]
        return [*names, "coverage"] if self.coverage == CoverageVectors() else names

    @property
    def is_sequential(self) -> bool:
        """Whether the weights of a query depend on what the queries before it gave their keys."""
        return self.coverage is not None or (self.map is not None and self.map.is_constrained)

    def for_heads(self, kind: str, heads: int, head_dim: int) -> AttentionRule:
        """The rule for one kind of attention, with a start for each head of what is learned."""
        if self.map is None:
            return replace(self, kind=kind)
        starts = {name: value.numbers for name, value in self.map.learned.items()}
        several = {name: Learned(start * heads if len(start) == 1 else start) for name, start in starts.items()}
        coverage = self.coverage and CoverageVectors(heads, head_dim)
        return replace(self, kind=kind, map=self.map.with_settings(**several), coverage=coverage)

    def to_dict(self) -> dict[str, Any] | None:
        """The map with its settings as plain data, None for softmax."""
        if self.map is None:
            return None
        return self.map.to_dict() | ({"coverage": self.coverage.plain()} if self.coverage else {})


def _attention_problems(map_config: MapConfig, coverage: CoverageVectors | None) -> Iterable[str]:
    """Reasons why a map cannot weigh attention, each with what to do."""
    name = map_config.name
    if not map_config.map.any_scores:
        yield f"{name} does not take scores of any sign; for attention choose one of {names_for(attention=True)}"
    if map_config.map_settings.get("tau") == "auto":
        yield f'tau="auto" is estimated from the weights of a head; for attention give {name} a number'
    if map_config.centered:
        yield "scores of attention are not centered; centered=True is for a head"
    if map_config.is_constrained and coverage:
        yield f"{name} follows what keys received by its bounds; give it no coverage"
    if map_config.value("beta") == Fixed(0.0):
        if map_config.value("gamma") != Fixed(1.0):
            yield "gamma is the power of a length that beta=0 leaves out; give beta above 0"
        if map_config.value("delta") == Fixed(0.0):
            yield "delta and beta are both 0, so that all keys would weigh the same"
