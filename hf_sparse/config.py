"""SparseConfig: which map replaces softmax where. Frozen, checked when made, and plain data when saved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .functional import MAPS, Setting, SparseMap, get_map

KINDS = ("encoder", "decoder", "cross")
VERSION = 1


@dataclass(frozen=True)
class Learned:
    """A setting of attention that is learned, a number for each head: ``"learned"``, ``{"learned": 1.3}``.

    Attributes:
        initial: where each head starts; one number until ``sparsify`` has seen how many heads there are.
    """

    initial: tuple[float, ...]


@dataclass(frozen=True)
class MapConfig:
    """A map with its settings, as in ``{"name": "entmax", "alpha": 1.33}``. Make one with ``parse``.

    Attributes:
        name: a registered map.
        settings: every setting the map takes, in the map's own order: a number, a word that stands for one
            (``"auto"``), True or False, a number for each head, or ``Learned``.
    """

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, value: str | Mapping[str, Any], role: str) -> MapConfig:
        """Check a map's name, or a mapping with its name and settings, as given for ``role`` ("attn" or "head").

        >>> MapConfig.parse({"name": "entmax", "alpha": 1.33}, "head")
        MapConfig(name='entmax', settings=(('alpha', 1.33),))
        """
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            raise TypeError(f'{role} must be None, a map\'s name or a mapping {{"name": ..., ...}}, was {value!r}')
        if not isinstance(value.get("name"), str):
            raise ValueError(f'{role} needs the map\'s name: {{"name": ..., ...}}, was {dict(value)!r}')
        sparse_map = get_map(value["name"])
        given = {key: setting for key, setting in value.items() if key != "name"}
        unknown = [key for key in given if key not in sparse_map.settings]
        if unknown:
            allowed = ", ".join(map(repr, sparse_map.settings)) or "none"
            raise ValueError(f"{role}: {sparse_map.name} does not take {unknown[0]!r}; its settings are: {allowed}")
        settings = tuple(
            (key, _parse_setting(setting, f"{role}: {key}", given.get(key, setting.default), per_head=role != "head"))
            for key, setting in sparse_map.settings.items()
        )
        return cls(sparse_map.name, settings)

    @property
    def map(self) -> SparseMap:
        """The registered map."""
        return get_map(self.name)

    @property
    def open_settings(self) -> list[str]:
        """Settings still to be worked out from the model (given as ``"auto"``)."""
        return [key for key, value in self.settings if value == "auto"]

    @property
    def learned(self) -> dict[str, Learned]:
        """Settings that are learned."""
        return {key: value for key, value in self.settings if isinstance(value, Learned)}

    def with_settings(self, **settings: Any) -> MapConfig:
        """The same map with some settings replaced."""
        return replace(self, settings=tuple((key, settings.get(key, value)) for key, value in self.settings))

    @property
    def is_constrained(self) -> bool:
        """Whether weights are bounded by the credit their keys have left; such a map is not called on scores alone."""
        return self.map.bounds is not None

    def __call__(self, z: Tensor, dim: int = -1, **settings: Tensor) -> Tensor:
        """Map scores to weights with these settings, some of them replaced by tensors."""
        return self.map.function(z, dim=dim, **(dict(self.settings) | settings))

    def loss(self) -> partial:
        """``loss(logits, target, **options)`` of this map; see ``hf_sparse.losses.fenchel_young_loss``."""
        from .losses import fenchel_young_loss

        settings: dict[str, Any] = dict(self.settings)
        return partial(fenchel_young_loss, name=self.name, **settings)

    def to_dict(self) -> dict[str, Any]:
        """``{"name": ..., **settings}``."""
        return {"name": self.name, **{key: _plain(value) for key, value in self.settings}}


def _parse_setting(setting: Setting, name: str, value: Any, per_head: bool) -> Any:
    """A checked setting; in attention a number may also be a list with one for each head, or learned."""
    if per_head and setting.holds is not None and isinstance(value, list | tuple):
        if not value:
            raise ValueError(f"{name} must be {setting.allowed}, or a list with one for each head, was []")
        return tuple(replace(setting, words=()).check(name, entry) for entry in value)
    if per_head and value == "learned":
        value = {"learned": setting.default}
    if per_head and isinstance(value, Mapping) and set(value) == {"learned"}:
        if setting.from_real is None or setting.to_real is None:
            raise ValueError(f"{name} cannot be learned; it must be {setting.allowed}")
        initial = value["learned"] if isinstance(value["learned"], list | tuple) else [value["learned"]]
        numbers = tuple(float(setting.check(name, entry)) for entry in initial)
        if not numbers or not all(map(math.isfinite, setting.to_real(torch.tensor(numbers, device="cpu")).tolist())):
            raise ValueError(f"{name} cannot start to be learned at {value['learned']}, the end of its range")
        return Learned(numbers)
    return setting.check(name, value)


def _plain(value: Any) -> Any:
    if isinstance(value, Learned):
        return {"learned": list(value.initial)}
    return list(value) if isinstance(value, tuple) else value


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
    choice = MapConfig.parse(value, role)
    fit = ", ".join(repr(name) for name, known in sorted(MAPS.items()) if known.normalized and known.any_scores)
    if not choice.map.normalized:
        raise ValueError(f"{role}: weights of {choice.name} do not sum to one; for attention choose one of {fit}")
    if not choice.map.any_scores:
        raise ValueError(f"{role}: {choice.name} does not take scores of any sign; for attention choose one of {fit}")
    return choice


def _head(value: Any) -> MapConfig:
    choice = MapConfig.parse(value, "head")
    choice.map.loss_regularizer()
    return choice


def _plain_layers(choice: Any) -> Any:
    if isinstance(choice, tuple):
        return [_plain_layers(layer) for layer in choice]
    return None if choice is None else choice.to_dict()


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
        choice = self.attn.get(kind) if isinstance(self.attn, dict) else self.attn
        if isinstance(choice, tuple):
            return choice[layer] if layer < len(choice) else None
        return choice

    @property
    def attention_maps(self) -> list[MapConfig]:
        """The maps of all kinds and layers of attention."""
        kinds = list(self.attn.values()) if isinstance(self.attn, dict) else [self.attn]
        layers = [layer for kind in kinds for layer in (kind if isinstance(kind, tuple) else (kind,))]
        return [layer for layer in layers if layer is not None]

    @property
    def is_learned(self) -> bool:
        """Whether some setting of attention is learned."""
        return any(choice.learned for choice in self.attention_maps)

    @property
    def map_names(self) -> list[str]:
        """The names of all maps, for tags."""
        return sorted({choice.name for choice in [*self.attention_maps, self.head] if choice is not None})

    def with_heads(self, heads: Mapping[str, int]) -> SparseConfig:
        """Learned settings with a start for each of the heads that each kind of attention has."""

        def filled(choice: Any, count: int) -> Any:
            if not isinstance(choice, MapConfig):
                return None if choice is None else tuple(filled(layer, count) for layer in choice)
            starts = {key: value.initial for key, value in choice.learned.items()}
            several = {key: Learned(start * count if len(start) == 1 else start) for key, start in starts.items()}
            return choice.with_settings(**several)

        attn = self.attn if isinstance(self.attn, dict) else dict.fromkeys(heads, self.attn)
        return replace(self, attn={kind: filled(choice, heads[kind]) for kind, choice in attn.items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``config.json``."""
        if isinstance(self.attn, dict):
            attn: Any = {kind: _plain_layers(choice) for kind, choice in self.attn.items()}
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
        return config
