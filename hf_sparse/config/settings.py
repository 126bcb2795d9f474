"""The values that settings of a map take, and the settings that every map takes.

A value is ``Fixed``, one number ``PerHead``, or one per head that is ``Learned``. All three have ``numbers`` (one, or
one per head; where learning starts), ``plain()`` (data for ``config.json``), ``shown()`` (text for a model card) and
``per_head(setting, parameter, x)``: the numbers as a tensor (heads,), float32 (float64 where ``x`` is) on the device
of ``x``, or None where all heads share one value. ``setting`` is the range, ``parameter`` the module that learns it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ..functional import Setting
from ..functional.rows import upcast

Plain: TypeAlias = "float | str | bool | list[float] | dict[str, list[float]]"


@dataclass(frozen=True, repr=False)
class Fixed:
    """One value for all heads: a number, True or False, or a word such as ``"auto"``."""

    value: float | str | bool

    @property
    def numbers(self) -> tuple[float, ...]:
        """The number; none for a word."""
        return () if isinstance(self.value, str) else (self.value,)

    def plain(self) -> Plain:
        """The value itself."""
        return self.value

    def shown(self) -> str:
        """A number to four digits; a word as it is."""
        return str(self.value) if isinstance(self.value, bool | str) else f"{self.value:.4g}"

    def per_head(self, setting: Setting, parameter: nn.Module | None, x: Tensor) -> None:
        """None: all heads share it."""

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class PerHead:
    """One number per head."""

    numbers: tuple[float, ...]

    def plain(self) -> Plain:
        """The numbers in a list."""
        return list(self.numbers)

    def shown(self) -> str:
        """The numbers to four digits."""
        return f"of each head {', '.join(f'{number:.4g}' for number in self.numbers)}"

    def per_head(self, setting: Setting, parameter: nn.Module | None, x: Tensor) -> Tensor:
        """The numbers as a tensor (heads,)."""
        return torch.tensor(self.numbers, dtype=upcast(x[:0]).dtype, device=x.device)


@dataclass(frozen=True)
class Learned:
    """One number per head, learned: ``"learned"``, or ``{"learned": 1.3}`` with a start.

    Attributes:
        initial: where each head starts; one number until ``sparsify`` has counted the heads.
    """

    initial: tuple[float, ...]

    @property
    def numbers(self) -> tuple[float, ...]:
        """The start of each head."""
        return self.initial

    def plain(self) -> Plain:
        """``{"learned": [...]}``."""
        return {"learned": list(self.initial)}

    def shown(self) -> str:
        """That it is learned; the numbers are among the weights."""
        return "learned for each head"

    def per_head(self, setting: Setting, parameter: nn.Module | None, x: Tensor) -> Tensor:
        """The learned numbers as a tensor (heads,), differentiable."""
        assert parameter is not None
        assert setting.from_real is not None
        real: Tensor = parameter(x)
        return setting.from_real(real.to(upcast(x[:0]).dtype))


SettingValue: TypeAlias = Fixed | PerHead | Learned


@dataclass(frozen=True)
class CoverageVectors:
    """``"coverage": "vector"``: what a key received at earlier steps moves it along a learned vector per head.

    Attributes:
        heads: number of vectors; 0 until ``sparsify`` has counted the heads.
        head_dim: their length.

    Source: Malaviya et al. 2018, Section 5 (CovVector), after Tu et al. 2016.
    """

    heads: int = 0
    head_dim: int = 0

    @classmethod
    def parse(cls, value: object, role: str) -> CoverageVectors | None:
        """Read ``"none"``, ``"vector"`` or the ``{"vector": [heads, head_dim]}`` of a saved model.

        Raises:
            ValueError: none of these.
        """
        if value == "none":
            return None
        if value == "vector":
            return cls()
        size = value["vector"] if isinstance(value, Mapping) and set(value) == {"vector"} else None
        if isinstance(size, list | tuple) and len(size) == 2 and all(type(n) is int and n > 0 for n in size):
            return cls(*size)
        raise ValueError(
            f'{role}: coverage must be "none" or "vector" (a saved model says {{"vector": [heads, head_dim]}}), '
            f"was {value!r}"
        )

    def plain(self) -> str | dict[str, list[int]]:
        """Plain data for ``config.json``."""
        return {"vector": [self.heads, self.head_dim]} if self.heads else "vector"

    def shown(self) -> str:
        """Text for a model card."""
        return "coverage by a learned vector for each head"


def as_value(value: SettingValue | Plain | tuple[float, ...]) -> SettingValue:
    """The inverse of ``plain``: a number, a word, a list of numbers, or ``{"learned": [...]}``; not checked."""
    if isinstance(value, Fixed | PerHead | Learned):
        return value
    if isinstance(value, dict):
        return Learned(tuple(value["learned"]))
    return PerHead(tuple(value)) if isinstance(value, list | tuple) else Fixed(value)


def parse_value(setting: Setting, name: str, value: object, attention: bool) -> SettingValue:
    """Check what a user gave for a setting.

    Args:
        setting: its default and range.
        name: how errors call it.
        value: a number, a word or a bool; in attention also a list with one number per head, ``"learned"``, or
            ``{"learned": start}``.
        attention: whether it is a setting of attention, which has heads.

    Raises:
        ValueError: out of range; an empty list; a setting that cannot be learned, or not from that start.
        TypeError: a value of another type.
    """
    if not attention:
        if value == "learned" or (isinstance(value, Mapping) and set(value) == {"learned"}):
            raise TypeError(f"{name} must be {setting.allowed}, was {value!r}; settings of attention can be learned")
        return Fixed(setting.check(name, value))
    if setting.holds is not None and isinstance(value, list | tuple):
        if not value:
            raise ValueError(f"{name} must be {_in_attention(setting).allowed}, was []")
        number = replace(setting, words=())
        return PerHead(tuple(float(number.check(name, entry)) for entry in value))
    if isinstance(value, str) and value == "learned":
        return _parse_learned(setting, name, setting.default)
    if isinstance(value, Mapping) and set(value) == {"learned"}:
        return _parse_learned(setting, name, value["learned"])
    return Fixed(_in_attention(setting).check(name, value))


def _in_attention(setting: Setting) -> Setting:
    """A setting whose messages tell what else attention takes for it."""
    if setting.holds is None:
        return setting
    words = setting.words if setting.from_real is None else (*setting.words, "learned")
    allowed = f"{setting.allowed}{',' if words else ' or'} a list with one for each head"
    return replace(setting, allowed=allowed, words=words)


def _parse_learned(setting: Setting, name: str, start: object) -> Learned:
    if setting.from_real is None or setting.to_real is None:
        raise ValueError(f"{name} cannot be learned; it must be {setting.allowed}")
    starts = start if isinstance(start, list | tuple) else [start]
    if not starts:
        raise ValueError(f"{name} needs a number to start to be learned from, was {start}")
    number = replace(setting, words=())
    numbers = tuple(float(number.check(name, entry)) for entry in starts)
    real = setting.to_real(torch.tensor(numbers, dtype=torch.float32, device="cpu"))
    if not all(map(math.isfinite, real.tolist())):
        raise ValueError(
            f'{name} cannot start to be learned at {start}, the end of its range; give {{"learned": start}} with a '
            f"start inside it, {setting.allowed}"
        )
    return Learned(numbers)


def _factor(default: float) -> Setting:
    """A factor of at least 0; its bound keeps scores in the thousands in the range of float32."""
    return Setting.between(
        0,
        1e6,
        default=default,
        from_real=nn.functional.softplus,
        to_real=lambda factor: factor + torch.log(-torch.expm1(-factor)),
    )


# The factor on scores of attention that depends on the number of keys; see ``length_scale``.
BY_LENGTH: dict[str, Setting] = {
    "delta": _factor(1.0),
    "beta": _factor(0.0),
    "gamma": Setting.between(
        -2,
        2,
        default=1.0,
        from_real=lambda real: 2 * torch.tanh(real),
        to_real=lambda gamma: torch.atanh(gamma / 2),
    ),
}
COLDEST, HOTTEST = 1e-4, 1e6  # temperatures that a map may have
# Settings of every map. Its function knows nothing of them: they change scores on their way in.
ON_SCORES: dict[str, Setting] = {
    "centered": Setting(default=False, allowed="True or False", holds=None),
    # Scores in the thousands stay in the range of float32 however they are divided.
    "temperature": Setting.between(
        COLDEST,
        HOTTEST,
        default=1.0,
        words=("auto",),
        from_real=torch.exp,
        to_real=torch.log,
    ),
    **BY_LENGTH,
}
