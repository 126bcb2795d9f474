"""MapConfig: a map with its settings, checked, and what it makes of scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .functional import Setting, SparseMap, get_map
from .functional.registry import underlying
from .functional.rows import upcast
from .functional.score_transforms import centered, length_scale


def _inverse_softplus(value: Tensor) -> Tensor:
    return value + torch.log(-torch.expm1(-value))


_FACTOR: dict[str, Any] = {
    "allowed": "a finite number >= 0",
    "holds": lambda factor: 0 <= factor < math.inf,
    "from_real": torch.nn.functional.softplus,
    "to_real": _inverse_softplus,
}
# What scales the scores of attention by the number of keys; see ``length_scale``.
BY_LENGTH: dict[str, Setting] = {
    "delta": Setting(default=1.0, **_FACTOR),
    "beta": Setting(default=0.0, **_FACTOR),
    "gamma": Setting(
        default=1.0,
        allowed="a number from -2 to 2",
        holds=lambda gamma: -2 <= gamma <= 2,
        from_real=lambda real: 2 * torch.tanh(real),
        to_real=lambda gamma: torch.atanh(gamma / 2),
    ),
}
# What every map takes. The map's function knows nothing of it: it is done to scores on their way in.
ON_SCORES: dict[str, Setting] = {
    "centered": Setting(default=False, allowed="True or False", holds=None),
    "temperature": Setting(
        default=1.0,
        allowed="a finite number > 0",
        holds=lambda temperature: 0 < temperature < math.inf,
        from_real=torch.exp,
        to_real=torch.log,
    ),
    **BY_LENGTH,
    "coverage": Setting(
        default="none",
        allowed='{"vector": [heads, head_dim]}',
        holds=lambda number: False,
        words=("none", "vector"),
    ),
}


@dataclass(frozen=True)
class Learned:
    """A setting of attention that is learned, a number for each head: ``"learned"``, ``{"learned": 1.3}``.

    Attributes:
        initial: where each head starts; one number until ``sparsify`` has seen how many heads there are.
    """

    initial: tuple[float, ...]


@dataclass(frozen=True)
class CoverageVectors:
    """``"coverage": "vector"`` in a model that has been seen, ``{"vector": [8, 64]}``: how many vectors, how long.

    What a key received at earlier steps moves it along a learned vector, one for each head.
    """

    heads: int
    head_dim: int


@dataclass(frozen=True)
class MapConfig:
    """A map with its settings, as in ``{"name": "entmax", "alpha": 1.33}``. Make one with ``parse``.

    Attributes:
        name: a registered map.
        settings: every setting the map takes, in the map's own order: a number, a word that stands for one
            (``"auto"``), True or False, a number for each head, ``Learned`` or ``CoverageVectors``; then those of
            ``ON_SCORES`` that are not at their default.
    """

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, value: str | Mapping[str, Any], role: str) -> MapConfig:
        """Check a map's name, or a mapping with its name and settings, as given for ``role`` ("attn" or "head").

        >>> MapConfig.parse({"name": "entmax", "alpha": 1.33}, "head")
        MapConfig(name='entmax', settings=(('alpha', 1.33),))
        >>> MapConfig.parse({"name": "entmax15", "temperature": 0.8}, "attn")
        MapConfig(name='entmax15', settings=(('temperature', 0.8),))
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
            allowed = ", ".join(map(repr, known))
            raise ValueError(f"{role}: {sparse_map.name} does not take {unknown[0]!r}; its settings are: {allowed}")
        settings = {
            key: _parse_setting(setting, f"{role}: {key}", given.get(key, setting.default), per_head=role != "head")
            for key, setting in known.items()
        }
        return cls(sparse_map.name).with_settings(**settings)

    @property
    def map(self) -> SparseMap:
        """The registered map."""
        return get_map(self.name)

    @property
    def centered(self) -> bool:
        """Whether the mean of the scores is taken off before the map."""
        return ("centered", True) in self.settings

    @property
    def temperature(self) -> Any:
        """What scores are divided by: a number, a number for each head, or ``Learned``."""
        return dict(self.settings).get("temperature", 1.0)

    @property
    def spelled_out(self) -> MapConfig:
        """The map that this one is another name for, with the settings that make it so.

        >>> MapConfig("entmax15").spelled_out
        MapConfig(name='entmax', settings=(('alpha', 1.5),))
        """
        name, settings = underlying(self.name, self.map_settings)
        return MapConfig(name).with_settings(**settings, **{k: v for k, v in self.settings if k in ON_SCORES})

    @property
    def map_settings(self) -> dict[str, Any]:
        """What the map's own function takes."""
        return {key: value for key, value in self.settings if key not in ON_SCORES}

    def setting(self, name: str) -> Setting:
        """The default and the range of a setting."""
        return ON_SCORES[name] if name in ON_SCORES else self.map.settings[name]

    @property
    def open_settings(self) -> list[str]:
        """Settings still to be worked out from the model (given as ``"auto"``)."""
        return [key for key, value in self.settings if value == "auto"]

    @property
    def learned(self) -> dict[str, Learned]:
        """Settings that are learned, a number for each head."""
        return {key: value for key, value in self.settings if isinstance(value, Learned)}

    @property
    def has_coverage(self) -> bool:
        """Whether what keys received at earlier steps goes into their scores."""
        return "coverage" in dict(self.settings)

    @property
    def learned_names(self) -> list[str]:
        """Settings that are learned, for each head a number or a vector."""
        return [*self.learned, *(["coverage"] if self.has_coverage else [])]

    def with_settings(self, **settings: Any) -> MapConfig:
        """The same map with some settings replaced."""
        merged = {**dict(self.settings), **settings}
        own = [(key, value) for key, value in merged.items() if key not in ON_SCORES]
        rest = [(key, merged.get(key, setting.default)) for key, setting in ON_SCORES.items()]
        return replace(self, settings=(*own, *(entry for entry in rest if entry[1] != ON_SCORES[entry[0]].default)))

    @property
    def scaled_by_length(self) -> bool:
        """Whether scores are multiplied by a factor that depends on how many keys there are."""
        return any(name in BY_LENGTH for name, _ in self.settings)

    def scores(self, z: Tensor, **replaced: Tensor) -> Tensor:
        """What the map is given: scores centered where asked, divided by the temperature and scaled by the number of
        keys, in float32 at least.

        Args:
            z: scores; the very same come back where nothing changes them.
            replaced: take the place of this map's own settings; they broadcast to ``z``.
        """
        z = centered(z) if self.centered else z
        if not replaced and not self.scaled_by_length:
            return z if self.temperature == 1 else upcast(z) / self.temperature
        own = {name: setting.default for name, setting in ON_SCORES.items()} | dict(self.settings) | replaced
        # A masked score stays masked, and does not reach the gradient of a learned setting as 0 times inf.
        masked = z == -torch.inf
        x = upcast(z).masked_fill(masked, 0.0) / own["temperature"]
        if self.scaled_by_length:
            x = x * length_scale(z, *(own[name] for name in BY_LENGTH))
        return x.masked_fill(masked, -torch.inf)

    @property
    def is_constrained(self) -> bool:
        """Whether weights are bounded by the credit their keys have left; such a map is not called on scores alone."""
        return self.map.bounds is not None

    @property
    def is_sequential(self) -> bool:
        """Whether the weights of a query depend on what the queries before it gave their keys."""
        return self.is_constrained or self.has_coverage

    def __call__(self, z: Tensor, dim: int = -1, **settings: Tensor) -> Tensor:
        """Map scores to weights with these settings, some of them replaced by tensors."""
        scores = self.scores(z, **{name: settings.pop(name) for name in ON_SCORES if name in settings})
        return self.map.function(scores, dim=dim, **(self.map_settings | settings)).to(z.dtype)

    def loss(self) -> Callable[..., Tensor]:
        """``loss(logits, target, **options)``: the loss of ``hf_sparse.losses.fenchel_young_loss`` at the scores the
        map is given, with gradient ``(p - y) / temperature`` by the logits, less its mean where they are centered.
        """
        from .losses import fenchel_young_loss

        settings = self.map_settings
        return lambda logits, target, **options: fenchel_young_loss(
            self.scores(logits), target, self.name, **settings, **options
        )

    def to_dict(self) -> dict[str, Any]:
        """``{"name": ..., **settings}``."""
        return {"name": self.name, **{key: _plain(value) for key, value in self.settings}}


def _parse_setting(setting: Setting, name: str, value: Any, per_head: bool) -> Any:
    """A checked setting; in attention a number may also be a list with one for each head, or learned."""
    if isinstance(value, Mapping) and set(value) == {"vector"} and "vector" in setting.words:
        return _parse_vectors(name, value["vector"])
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


def _parse_vectors(name: str, size: Any) -> CoverageVectors:
    whole = isinstance(size, list | tuple) and all(type(entry) is int and entry > 0 for entry in size)
    if not whole or len(size) != 2:
        raise ValueError(f'{name} must be "vector"; a saved model says {{"vector": [heads, head_dim]}}, was {size!r}')
    return CoverageVectors(*size)


def _plain(value: Any) -> Any:
    if isinstance(value, CoverageVectors):
        return {"vector": [value.heads, value.head_dim]}
    if isinstance(value, Learned):
        return {"learned": list(value.initial)}
    return list(value) if isinstance(value, tuple) else value
