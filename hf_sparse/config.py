"""SparseConfig: which map replaces softmax where. Frozen, checked when made, and plain data when saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from .functional import MAPS
from .map_config import BY_LENGTH, CoverageVectors, Learned, MapConfig

__all__ = ["MapConfig", "SparseConfig"]

KINDS = ("encoder", "decoder", "cross")
VERSION = 1

# One map for all attention, or for each kind one map or one for each layer.
AttentionConfig: TypeAlias = "MapConfig | dict[str, MapConfig | tuple[MapConfig | None, ...]] | None"


def _parse_attention(attn: Any) -> AttentionConfig:
    if attn is None:
        return None
    if isinstance(attn, Mapping) and "name" not in attn:
        unknown = [kind for kind in attn if kind not in KINDS]
        if unknown or not attn:
            raise ValueError(f"attn: kinds of attention are {', '.join(map(repr, KINDS))}, was {list(attn)}")
        return {kind: _layers(attn[kind], f"attn[{kind!r}]") for kind in KINDS if attn.get(kind) is not None} or None
    if isinstance(attn, list | tuple):
        raise TypeError('attn: a list of maps, one for each layer, goes with a kind: {"decoder": [...]}')
    return _weighing(attn, "attn")


def _layers(value: Any, role: str) -> Any:
    if not isinstance(value, list | tuple):
        return _weighing(value, role)
    layers = tuple(None if entry is None else _weighing(entry, f"{role}[{i}]") for i, entry in enumerate(value))
    if not any(layers):
        raise ValueError(f"{role} lists no map; leave {role} out to keep softmax")
    return layers


def _weighing(value: Any, role: str) -> MapConfig:
    map_config = MapConfig.parse(value, role)
    fit = ", ".join(repr(name) for name, known in sorted(MAPS.items()) if known.normalized and known.any_scores)
    if not map_config.map.normalized:
        raise ValueError(f"{role}: weights of {map_config.name} do not sum to one; for attention choose one of {fit}")
    if "centered" in dict(map_config.settings):
        raise ValueError(f"{role}: scores of attention are not centered; centered=True is for a head")
    if not map_config.map.any_scores:
        raise ValueError(
            f"{role}: {map_config.name} does not take scores of any sign; for attention choose one of {fit}"
        )
    if map_config.is_constrained and map_config.has_coverage:
        raise ValueError(f"{role}: {map_config.name} follows what keys received by its bounds; give it no coverage")
    settings = dict(map_config.settings)
    if settings.get("beta", 0.0) == 0:
        if "gamma" in settings:
            raise ValueError(f"{role}: gamma is the power of a length that beta=0 leaves out; give beta above 0")
        if settings.get("delta") == 0:
            raise ValueError(f"{role}: delta and beta are both 0, so that all keys would weigh the same")
    return map_config


def _head(value: Any) -> MapConfig:
    map_config = MapConfig.parse(value, "head")
    if map_config.centered and map_config.map.shift_invariant:
        raise ValueError(f"head: {map_config.name} ignores a constant in its scores; leave centered out")
    if map_config.scaled_by_length:
        given = ", ".join(name for name, _ in map_config.settings if name in BY_LENGTH)
        raise ValueError(f"head: {given} scale scores by the number of keys; they are for attention")
    if map_config.has_coverage:
        raise ValueError("head: coverage follows what attention gave its keys; it is for attention")
    map_config.map.loss_regularizer()
    return map_config


def _plain_layers(map_config: Any) -> Any:
    if isinstance(map_config, tuple):
        return [_plain_layers(layer) for layer in map_config]
    return None if map_config is None else map_config.to_dict()


@dataclass(frozen=True)
class SparseConfig:
    """Where a model is sparse, and how.

    Attributes:
        attn: one map for all attention, or for some kinds (``"encoder"``, ``"decoder"``, ``"cross"``) a map or a list
            with one map or None for each layer; or None.
        head: the map from logits to next-token probabilities, or None to leave softmax.
        fused_loss: in training, compute the head's loss without ever holding its logits.

    >>> SparseConfig.parse(attn="entmax15", head={"name": "alpha_relu", "tau": 0.3}).to_dict()
    {'version': 1, 'attn': {'name': 'entmax15'}, 'head': {'name': 'alpha_relu', 'alpha': 1.5, 'tau': 0.3},
     'fused_loss': False}
    """

    attn: AttentionConfig = None
    head: MapConfig | None = None
    fused_loss: bool = False

    @classmethod
    def parse(cls, attn: Any = None, head: Any = None, fused_loss: bool = False) -> SparseConfig:
        """Check what the user asked of ``sparsify``.

        Args:
            attn: None, a map's name, a mapping with name and settings, or a mapping from kinds to any of these.
            head: None, a map's name, or a mapping with name and settings.
            fused_loss: whether the head's loss is computed without its logits.

        Raises:
            ValueError: nothing asked for; an unknown map, kind or setting; a setting out of range; a map that
                cannot weigh attention.
            TypeError: a value of the wrong type.
        """
        if not isinstance(fused_loss, bool):
            raise TypeError(f"fused_loss must be True or False, was {fused_loss!r}")
        config = cls(_parse_attention(attn), None if head is None else _head(head), fused_loss)
        if config.attn is None and config.head is None:
            raise ValueError("nothing to make sparse: give attn, head or both (a map's name, or a mapping)")
        return config

    def attention(self, kind: str, layer: int) -> MapConfig | None:
        """The map for one kind of attention in one layer, or None where softmax stays."""
        map_config = self.attn.get(kind) if isinstance(self.attn, dict) else self.attn
        if isinstance(map_config, tuple):
            return map_config[layer] if layer < len(map_config) else None
        return map_config

    @property
    def attention_maps(self) -> list[MapConfig]:
        """The maps of all kinds and layers of attention."""
        kinds = list(self.attn.values()) if isinstance(self.attn, dict) else [self.attn]
        layers = [layer for kind in kinds for layer in (kind if isinstance(kind, tuple) else (kind,))]
        return [layer for layer in layers if layer is not None]

    @property
    def is_learned(self) -> bool:
        """Whether some setting of attention is learned."""
        return any(map_config.learned_names for map_config in self.attention_maps)

    @property
    def map_names(self) -> list[str]:
        """The names of all maps, for tags."""
        return sorted({map_config.name for map_config in [*self.attention_maps, self.head] if map_config is not None})

    def with_heads(self, heads: Mapping[str, tuple[int, int]]) -> SparseConfig:
        """Learned settings with a start for each head, and coverage with a vector for each.

        Args:
            heads: how many heads each kind of attention with something to learn has, and how long their queries are.
        """

        def filled(map_config: Any, count: int, head_dim: int) -> Any:
            if not isinstance(map_config, MapConfig):
                return None if map_config is None else tuple(filled(layer, count, head_dim) for layer in map_config)
            starts = {key: value.initial for key, value in map_config.learned.items()}
            several: dict[str, Any] = {
                key: Learned(start * count if len(start) == 1 else start) for key, start in starts.items()
            }
            if map_config.has_coverage:
                several["coverage"] = CoverageVectors(count, head_dim)
            return map_config.with_settings(**several)

        attn: dict[str, Any] = self.attn if isinstance(self.attn, dict) else dict.fromkeys(heads, self.attn)
        return replace(self, attn={**attn, **{kind: filled(attn[kind], *size) for kind, size in heads.items()}})

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``config.json``."""
        if isinstance(self.attn, dict):
            attn: Any = {kind: _plain_layers(map_config) for kind, map_config in self.attn.items()}
        else:
            attn = _plain_layers(self.attn)
        head = None if self.head is None else self.head.to_dict()
        return {"version": VERSION, "attn": attn, "head": head, "fused_loss": self.fused_loss}

    @classmethod
    def from_dict(cls, data: Any) -> SparseConfig:
        """Read what ``to_dict`` wrote, trusting nothing.

        Raises:
            ValueError: not such a block, a version this release does not know, or fields it does not know.
        """
        if not isinstance(data, Mapping) or "version" not in data:
            raise ValueError(f"not a saved hf_sparse configuration: {data!r}")
        if data["version"] != VERSION:
            raise ValueError(
                f"saved by hf_sparse format {data['version']!r}, this release reads format {VERSION}: "
                "install the hf_sparse release that saved it, or a newer one"
            )
        unknown = sorted(set(data) - {"version", *(field.name for field in fields(cls))})
        if unknown:
            raise ValueError(f"unknown fields in the saved hf_sparse configuration: {', '.join(map(repr, unknown))}")
        config = cls.parse(**{key: value for key, value in data.items() if key != "version"})
        if config.head is not None and config.head.open_settings:
            raise ValueError(f"the saved head leaves {config.head.open_settings[0]!r} open; it must be a number")
        if any(dict(map_config.settings).get("coverage") == "vector" for map_config in config.attention_maps):
            raise ValueError('the saved attention has coverage="vector" without the size of the vectors')
        return config
