"""A map with its settings: parsed, checked, called on scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..functional import MAPS, Setting, SparseMap, balanced_temperature, get_map
from ..functional.registry import underlying
from ..functional.rows import upcast
from ..functional.score_transforms import centered, length_scale
from ..losses import fenchel_young_loss
from .settings import BY_LENGTH, HOTTEST, ON_SCORES, Fixed, Learned, Plain, SettingValue, as_value, parse_value


def names_for(attention: bool) -> str:
    """The names of the maps that can weigh attention, or be a head, for messages."""
    fit = [name for name, known in MAPS.items() if (known.any_scores if attention else known.regularizer is not None)]
    return ", ".join(map(repr, sorted(fit)))


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
        attention = role != "head"
        if value["name"] not in MAPS:
            raise ValueError(f"{role}: unknown sparse map {value['name']!r}; choose one of {names_for(attention)}")
        sparse_map = get_map(value["name"])
        given = {key: setting for key, setting in value.items() if key != "name"}
        known = {**sparse_map.settings, **ON_SCORES}
        unknown = [key for key in given if key not in known]
        if unknown:
            allowed = ", ".join(map(repr, [*known, *(["coverage"] if attention else [])]))
            base = underlying(sparse_map.name, {})[0]
            instead = f', or take "{base}"' if unknown[0] in get_map(base).settings else ""
            raise ValueError(
                f"{role}: {sparse_map.name} does not take {unknown[0]!r}; its settings are: {allowed}{instead}"
            )
        settings = {
            key: parse_value(setting, f"{role}: {key}", given.get(key, setting.default), attention)
            for key, setting in known.items()
        }
        parsed = cls(sparse_map.name).with_settings(**settings)
        if parsed.temperature == "auto" and parsed.alpha is None:
            raise ValueError(
                f'{role}: temperature="auto" follows one alpha, of the entmax family or of alpha_relu, and '
                f"{parsed.name} has none here; give a number"
            )
        return parsed

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
        settings = self.map_settings
        return lambda logits, target, **options: fenchel_young_loss(
            self.scores(logits), target, self.name, **settings, **options
        )

    def to_dict(self) -> dict[str, Any]:
        """``{"name": ..., **settings}``."""
        return {"name": self.name, **{key: value.plain() for key, value in self.settings}}
