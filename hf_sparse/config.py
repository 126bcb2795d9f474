"""The configuration of a sparse model: which map replaces softmax where. Frozen, checked, plain data when saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from .functional import MAPS, Setting, SparseMap, balanced_temperature, get_map
from .functional.arguments import check_flag
from .functional.registry import underlying
from .functional.rows import upcast
from .functional.score_transforms import centered, length_scale
from .settings import (
    BY_LENGTH,
    HOTTEST,
    ON_SCORES,
    CoverageVectors,
    Fixed,
    Learned,
    Plain,
    SettingValue,
    as_value,
    parse_value,
)

__all__ = ["AttentionRule", "MapConfig", "SparseConfig"]

KINDS = ("encoder", "decoder", "cross")
VERSION = 1
# Factors on the loss of a head with a temperature T: T itself, or 1 as in checkpoints that name none.
LOSS_SCALES = ("temperature", "one")
# Keys that the temperature "auto" of attention counts on: a model has no fixed number of them. A quarter of them or
# four times as many change it by a factor of 1.4 at alpha 1.5, and of 2 at alpha 2.
TYPICAL_KEYS = 64


@dataclass(frozen=True)
class MapConfig:
    """A map with its settings, as in ``{"name": "entmax", "alpha": 1.33}``. Make one with ``parse``.

    Attributes:
        name: a registered map.
        settings: every setting the map takes, in the map's own order; then those of all maps (``ON_SCORES``) that
            are not at their default.
    """

    name: str
    settings: tuple[tuple[str, SettingValue], ...] = ()

    @classmethod
    def parse(cls, value: object, role: str) -> MapConfig:
        """Check a map's name, or a mapping with its name and settings, as given for ``role`` ("attn" or "head").

        >>> MapConfig.parse({"name": "entmax", "alpha": 1.33}, "head")
        MapConfig(name='entmax', settings=(('alpha', 1.33),))
        >>> MapConfig.parse({"name": "entmax15", "temperature": 0.8}, "attn")
        MapConfig(name='entmax15', settings=(('temperature', 0.8),))

        Raises:
            ValueError: an unknown map or setting, or a setting out of range.
            TypeError: a value of the wrong type.
        """
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            raise TypeError(f'{role} must be None, a map\'s name or a mapping {{"name": ..., ...}}, was {value!r}')
        if not isinstance(value.get("name"), str):
            raise ValueError(f'{role} needs the map\'s name: {{"name": ..., ...}}, was {dict(value)!r}')
        sparse_map = get_map(value["name"])
        given = {key: setting for key, setting in value.items() if key != "name"}
        known = {**sparse_map.settings, **ON_SCORES}
        unknown = [key for key in given if key not in known]
        if unknown:
            allowed = ", ".join(map(repr, [*known, *(["coverage"] if role != "head" else [])]))
            base = underlying(sparse_map.name, {})[0]
            instead = f', or take "{base}"' if unknown[0] in get_map(base).settings else ""
            raise ValueError(
                f"{role}: {sparse_map.name} does not take {unknown[0]!r}; its settings are: {allowed}{instead}"
            )
        attention = role != "head"
        settings = {
            key: parse_value(setting, f"{role}: {key}", given.get(key, setting.default), attention)
            for key, setting in known.items()
        }
        return cls(sparse_map.name).with_settings(**settings)

    @property
    def map(self) -> SparseMap:
        """The registered map."""
        return get_map(self.name)

    def setting(self, name: str) -> Setting:
        """The default and the range of a setting."""
        return ON_SCORES[name] if name in ON_SCORES else self.map.settings[name]

    def value(self, name: str) -> SettingValue:
        """The value of a setting, its default where none was given."""
        return dict(self.settings).get(name) or Fixed(self.setting(name).default)

    @property
    def map_settings(self) -> dict[str, Any]:
        """The keyword arguments of the map's own function, as plain data."""
        return {key: value.plain() for key, value in self.settings if key not in ON_SCORES}

    @property
    def temperature(self) -> Any:
        """The divisor of scores: a number, or a tuple with one per head (the start of each, if learned).

        ``"auto"`` at a head until ``sparsify`` has counted the classes; attention is given its number by ``parse``.
        """
        value = self.value("temperature")
        return value.plain() if isinstance(value, Fixed) else value.numbers

    @property
    def alpha(self) -> float | None:
        """The alpha of the entmax family (1 for softmax) and of alpha-ReLU; None where a map has no such number."""
        alpha = self._underlying[1].get("alpha")
        return alpha if isinstance(alpha, float) else None

    @property
    def centered(self) -> bool:
        """Whether the mean of the scores is taken off before the map."""
        return self.value("centered") == Fixed(True)

    @property
    def scaled_by_length(self) -> bool:
        """Whether scores are multiplied by a factor that depends on the number of keys."""
        return any(name in BY_LENGTH for name, _ in self.settings)

    @property
    def counts_keys(self) -> bool:
        """Whether the number of visible keys, or of keys far below the others, goes into the weights."""
        return self.scaled_by_length or not self.map.normalized

    @property
    def is_constrained(self) -> bool:
        """Whether weights are bounded by the credit their keys have left; such a map is not called on scores alone."""
        return self.map.bounds is not None

    @property
    def learned(self) -> dict[str, Learned]:
        """Settings that are learned, a number per head."""
        return {key: value for key, value in self.settings if isinstance(value, Learned)}

    @property
    def open_settings(self) -> list[str]:
        """Settings still to be worked out from the model (given as ``"auto"``)."""
        return [key for key, value in self.settings if value == Fixed("auto")]

    @property
    def spelled_out(self) -> MapConfig:
        """The map that this one is another name for, with the settings that make it so.

        >>> MapConfig("entmax15").spelled_out
        MapConfig(name='entmax', settings=(('alpha', 1.5),))
        """
        name, settings = self._underlying
        return MapConfig(name).with_settings(**settings, **{k: v for k, v in self.settings if k in ON_SCORES})

    @property
    def _underlying(self) -> tuple[str, dict[str, Any]]:
        """The name of that map, and the keyword arguments of its own function."""
        return underlying(self.name, self.map_settings)

    @property
    def is_entmax(self) -> bool:
        """Whether the map is of the entmax family, softmax and sparsemax included."""
        return self._underlying[0] == "entmax"

    @property
    def entmax_settings(self) -> dict[str, Any]:
        """The keyword arguments of ``entmax`` that make it this map, if it is of that family."""
        return self._underlying[1]

    def with_settings(self, **settings: SettingValue | Plain | tuple[float, ...]) -> MapConfig:
        """The same map with some settings replaced; numbers, words and lists stand for themselves."""
        merged = {**dict(self.settings), **{name: as_value(value) for name, value in settings.items()}}
        own = [(key, value) for key, value in merged.items() if key not in ON_SCORES]
        rest = [(key, merged[key]) for key in ON_SCORES if key in merged]
        changed = [(key, value) for key, value in rest if value != Fixed(ON_SCORES[key].default)]
        return replace(self, settings=(*own, *changed))

    def balanced(self, num_classes: int, role: str) -> MapConfig:
        """The map at the temperature that ``"auto"`` stands for; see ``balanced_temperature``.

        Args:
            num_classes: classes of the head, or keys of attention.
            role: how errors call the map.

        Raises:
            ValueError: no map may have that temperature.
        """
        assert self.alpha is not None  # else ``parse`` refuses "auto"
        temperature = balanced_temperature(self.alpha, num_classes)
        if temperature > HOTTEST:
            raise ValueError(
                f'{role}: temperature="auto" would be {temperature:.3g} at alpha = {self.alpha:g}, and the highest is '
                f"{HOTTEST:g}; give a number, or a smaller alpha"
            )
        return self.with_settings(temperature=temperature)

    def scores(self, z: Tensor, **replaced: Tensor) -> Tensor:
        """Transform scores on their way to the map: center where asked, divide by the temperature, scale by length.

        Args:
            z: scores; the very same come back where nothing changes them, else in float32 at least.
            replaced: take the place of this map's own settings; they broadcast to ``z``.
        """
        z = centered(z) if self.centered else z
        if not replaced and not self.scaled_by_length:
            return z if self.temperature == 1 else upcast(z) / self.temperature
        own: dict[str, Any] = {name: self.value(name).plain() for name in ON_SCORES} | replaced
        # A masked score stays masked, and does not reach the gradient of a learned setting as 0 times inf.
        masked = z == -torch.inf
        x = upcast(z).masked_fill(masked, 0.0) / own["temperature"]
        if self.scaled_by_length:
            x = x * length_scale(z, *(own[name] for name in BY_LENGTH))
        return x.masked_fill(masked, -torch.inf)

    def __call__(self, z: Tensor, dim: int = -1, **settings: Tensor) -> Tensor:
        """Map scores to weights with these settings, some of them replaced by tensors."""
        scores = self.scores(z, **{name: settings.pop(name) for name in ON_SCORES if name in settings})
        return self.map.function(scores, dim=dim, **(self.map_settings | settings)).to(z.dtype)

    def loss(self) -> Callable[..., Tensor]:
        """``loss(logits, target, **options)``: ``hf_sparse.losses.fenchel_young_loss`` at the map's own scores.

        Its gradient is ``(p - y) / temperature`` by the logits, less its mean where they are centered; a model's loss
        has the factor ``SparseConfig.loss_factor`` besides.
        """
        from .losses import fenchel_young_loss

        settings = self.map_settings
        return lambda logits, target, **options: fenchel_young_loss(
            self.scores(logits), target, self.name, **settings, **options
        )

    def to_dict(self) -> dict[str, Any]:
        """``{"name": ..., **settings}``."""
        return {"name": self.name, **{key: value.plain() for key, value in self.settings}}


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


def _names_for_attention() -> list[str]:
    return sorted(name for name, known in MAPS.items() if known.any_scores)


def _attention_problems(map_config: MapConfig, coverage: CoverageVectors | None) -> Iterable[str]:
    """Reasons why a map cannot weigh attention, each with what to do."""
    yield from _map_problems(map_config)
    if map_config.centered:
        yield "scores of attention are not centered; centered=True is for a head"
    yield from _temperature_problems(map_config)
    if map_config.is_constrained and coverage:
        yield f"{map_config.name} follows what keys received by its bounds; give it no coverage"
    if map_config.value("beta") == Fixed(0.0):
        if map_config.value("gamma") != Fixed(1.0):
            yield "gamma is the power of a length that beta=0 leaves out; give beta above 0"
        if map_config.value("delta") == Fixed(0.0):
            yield "delta and beta are both 0, so that all keys would weigh the same"


def _temperature_problems(map_config: MapConfig) -> Iterable[str]:
    if map_config.temperature == "auto" and map_config.alpha is None:
        yield (
            f'temperature="auto" follows one alpha, of the entmax family or of alpha_relu, and {map_config.name} has '
            "none here; give a number"
        )


def _map_problems(map_config: MapConfig) -> Iterable[str]:
    """Reasons why the map itself, with its own settings, cannot weigh attention."""
    name, sparse_map = map_config.name, map_config.map
    fit = ", ".join(map(repr, _names_for_attention()))
    if not sparse_map.any_scores:
        yield f"{name} does not take scores of any sign; for attention choose one of {fit}"
    if map_config.map_settings.get("tau") == "auto":
        yield f'tau="auto" is estimated from the weights of a head; for attention give {name} a number'


def _parse_attention(attn: object) -> tuple[AttentionRule, ...]:
    """The rules that a user's ``attn`` stands for: nothing, one map, or a map or list of maps for each kind."""
    if attn is None:
        return ()
    if isinstance(attn, list | tuple):
        raise TypeError('attn: a list of maps, one for each layer, goes with a kind: {"decoder": [...]}')
    if not isinstance(attn, Mapping) or "name" in attn:
        return (AttentionRule.parse(None, None, attn),)
    unknown = [kind for kind in attn if kind not in KINDS]
    if unknown or not attn:
        raise ValueError(f"attn: kinds of attention are {', '.join(map(repr, KINDS))}, was {list(attn)}")
    return tuple(rule for kind in KINDS if attn.get(kind) is not None for rule in _parse_kind(kind, attn[kind]))


def _parse_kind(kind: str, value: object) -> list[AttentionRule]:
    if not isinstance(value, list | tuple):
        return [AttentionRule.parse(kind, None, value)]
    if all(entry is None for entry in value):
        role = AttentionRule(kind, None, None).role
        raise ValueError(f"{role} lists no map; leave {role} out to keep softmax")
    return [
        AttentionRule(kind, layer, None) if entry is None else AttentionRule.parse(kind, layer, entry)
        for layer, entry in enumerate(value)
    ]


def _parse_head(value: object) -> MapConfig:
    if isinstance(value, Mapping) and value.get("coverage", "none") != "none":
        raise ValueError("head: coverage follows what attention gave its keys; it is for attention")
    if isinstance(value, Mapping):
        value = {key: entry for key, entry in value.items() if key != "coverage"}
    map_config = MapConfig.parse(value, "head")
    if map_config.centered and map_config.map.shift_invariant:
        raise ValueError(f"head: {map_config.name} ignores a constant in its scores; leave centered out")
    if map_config.scaled_by_length:
        given = ", ".join(name for name, _ in map_config.settings if name in BY_LENGTH)
        raise ValueError(f"head: {given} scale scores by the number of keys; they are for attention")
    map_config.map.loss_regularizer()
    for problem in _temperature_problems(map_config):
        raise ValueError(f"head: {problem}")
    return map_config


@dataclass(frozen=True)
class SparseConfig:
    """The maps that a model has in the place of softmax.

    Attributes:
        attn: the rules for attention: one for all of it, or for some kinds one for all layers or one per layer. Empty
            where attention is dense.
        head: the map from logits to next-token probabilities, or None to leave softmax.
        fused_loss: in training, compute the head's loss without ever holding its logits.
        loss_scale: the factor on the loss ``L(z / T, y)`` of a head with temperature T. ``"temperature"``: T, so that
            the gradient by the logits is ``p - y`` at every T, as softmax's is. ``"one"``: 1, with the gradient
            ``(p - y) / T``; checkpoints saved without this field were trained so, and keep it. At T = 1 both are the
            same, and this is ``"temperature"``.

    >>> SparseConfig.parse(attn="entmax15", head={"name": "alpha_relu", "tau": 0.3}).to_dict()
    {'version': 1, 'attn': {'name': 'entmax15'}, 'head': {'name': 'alpha_relu', 'alpha': 1.5, 'tau': 0.3},
     'fused_loss': False}
    """

    attn: tuple[AttentionRule, ...] = ()
    head: MapConfig | None = None
    fused_loss: bool = False
    loss_scale: str = "temperature"

    def __post_init__(self) -> None:
        if self.head is None or self.head.temperature == 1:  # settings that train alike are equal
            object.__setattr__(self, "loss_scale", "temperature")

    @classmethod
    def parse(
        cls, attn: object = None, head: object = None, fused_loss: bool = False, loss_scale: str = "temperature"
    ) -> SparseConfig:
        """Check what the user asked of ``sparsify``.

        Args:
            attn: None, a map's name, a mapping with name and settings, or a mapping from kinds to any of these.
            head: None, a map's name, or a mapping with name and settings.
            fused_loss: whether the head's loss is computed without its logits.
            loss_scale: ``"temperature"`` or ``"one"``.

        Raises:
            ValueError: nothing asked for; an unknown map, kind, setting or scale; a setting out of range; a map that
                cannot weigh attention.
            TypeError: a value of the wrong type.
        """
        check_flag("fused_loss", fused_loss)
        if loss_scale not in LOSS_SCALES:
            raise ValueError(f"loss_scale must be {' or '.join(map(repr, LOSS_SCALES))}, was {loss_scale!r}")
        config = cls(_parse_attention(attn), None if head is None else _parse_head(head), fused_loss, loss_scale)
        if not config.attn and config.head is None:
            raise ValueError("nothing to make sparse: give attn, head or both (a map's name, or a mapping)")
        return config

    def rule(self, kind: str, layer: int) -> AttentionRule:
        """The rule for one kind of attention in one layer; one without a map where softmax stays."""
        for rule in self.attn:
            if rule.kind in (None, kind) and rule.layer in (None, layer):
                return rule
        return AttentionRule(kind, layer, None)

    def attention(self, kind: str, layer: int) -> MapConfig | None:
        """The map for one kind of attention in one layer, or None where softmax stays."""
        return self.rule(kind, layer).map

    @property
    def kinds(self) -> list[str]:
        """The kinds of attention that have rules of their own."""
        return [kind for kind in KINDS if any(rule.kind == kind for rule in self.attn)]

    def layers_listed(self, kind: str) -> int:
        """The number of layers that have a rule each; 0 where one rule is for all layers of the kind."""
        return sum(rule.kind == kind and rule.layer is not None for rule in self.attn)

    @property
    def attention_maps(self) -> list[MapConfig]:
        """The maps of all kinds and layers of attention."""
        return [rule.map for rule in self.attn if rule.map is not None]

    @property
    def is_learned(self) -> bool:
        """Whether some setting of attention is learned."""
        return any(rule.learned_names for rule in self.attn)

    @property
    def is_sequential(self) -> bool:
        """Whether some attention follows what its keys received before."""
        return any(rule.is_sequential for rule in self.attn)

    @property
    def map_names(self) -> list[str]:
        """The names of all maps, for tags."""
        return sorted({map_config.name for map_config in [*self.attention_maps, self.head] if map_config is not None})

    def replace_maps(self, new_map: Callable[[AttentionRule], MapConfig | None]) -> SparseConfig:
        """The same rules with other maps: ``new_map(rule)`` for every rule that has one."""
        return replace(
            self, attn=tuple(rule if rule.map is None else replace(rule, map=new_map(rule)) for rule in self.attn)
        )

    def with_heads(self, heads: Mapping[str, tuple[int, int]]) -> SparseConfig:
        """Give learned settings a start for each head, and coverage a vector for each.

        Args:
            heads: by kind of attention with something to learn, the number of heads and the length of their queries.
        """
        rules: list[AttentionRule] = []
        for rule in self.attn:
            kinds = [rule.kind] if rule.kind else list(heads)
            rules += [rule.for_heads(kind, *heads[kind]) if kind in heads else rule for kind in kinds]
        return replace(self, attn=tuple(rules))

    @property
    def loss_factor(self) -> float:
        """The factor on the head's loss that ``loss_scale`` names; 1 where the head is dense."""
        return 1.0 if self.head is None or self.loss_scale == "one" else self.head.temperature

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``config.json``; ``loss_scale`` where there is a factor."""
        head = None if self.head is None else self.head.to_dict()
        plain = {"version": VERSION, "attn": self._plain_attention(), "head": head, "fused_loss": self.fused_loss}
        return plain if self.loss_factor == 1 else plain | {"loss_scale": self.loss_scale}

    def _plain_attention(self) -> dict[str, Any] | None:
        by_kind: dict[str | None, Any] = {}
        for rule in self.attn:
            if rule.layer is None:
                by_kind[rule.kind] = rule.to_dict()
            else:
                by_kind.setdefault(rule.kind, []).append(rule.to_dict())
        return by_kind.get(None, by_kind or None)

    @classmethod
    def from_dict(cls, data: object) -> SparseConfig:
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
        config = cls.parse(**{"loss_scale": "one"} | {key: value for key, value in data.items() if key != "version"})
        if config.head is not None and config.head.open_settings:
            raise ValueError(f"the saved head leaves {config.head.open_settings[0]!r} open; it must be a number")
        if any(rule.coverage == CoverageVectors() for rule in config.attn):
            raise ValueError('the saved attention has coverage="vector" without the size of the vectors')
        return config
