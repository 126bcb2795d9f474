"""The record of a sparse map: its function, regularizer and settings. Everything else is derived from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from .arguments import between
from .rows import upcast

NO_DISTRIBUTION = "weighs attention and gives no distribution over classes"


@dataclass(frozen=True)
class Setting:
    """One setting of a map: its default and the range it may take.

    Attributes:
        default: value used when the setting is not given.
        allowed: the range in words, for error messages ("must be ``allowed``").
        holds: whether a number lies in the range; None for a setting that is True or False.
        words: accepted in place of a number: ``"auto"`` (``sparsify`` works it out from the model), ``"given"`` (it
            comes with every call), ``"predicted"`` and ``"guided"`` (the model works it out from its input),
            ``"length"`` (it follows the number of keys).
        from_real: for a setting that can be learned, a map from the real numbers onto its range.
        to_real: the inverse of ``from_real``.
    """

    default: float | str | bool
    allowed: str
    holds: Callable[[float], bool] | None
    words: tuple[str, ...] = ()
    from_real: Callable[[Tensor], Tensor] | None = None
    to_real: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def between(cls, low: float, high: float, default: float | str, **others: Any) -> Setting:
        """A number from ``low`` to ``high``: as far as results are right; ``others`` are fields of the record."""
        return cls(default, *between(low, high), **others)

    def check(self, name: str, value: object) -> float | str | bool:
        """Return ``value`` as a float, a bool, or one of the words.

        Raises:
            TypeError: neither a number, nor a bool where the setting is one, nor one of the words.
            ValueError: a number out of range.
        """
        if isinstance(value, str) and value in self.words:
            return value
        if isinstance(value, bool) == (self.holds is not None) or not isinstance(value, Real):
            raise TypeError(f"{name} must be {self._in_words()}, was {value!r}")
        if self.holds is None:
            return bool(value)
        number = float(value)
        if not self.holds(number):
            raise ValueError(f"{name} must be {self._in_words()}, was {value}")
        return number

    def broadcast(self, name: str, value: float | Tensor, z: Tensor, dim: int) -> float | Tensor:
        """The setting as a number, or as a tensor that broadcasts to scores ``z``, the axis ``dim`` last.

        Raises:
            TypeError: neither a number nor a floating-point tensor.
            ValueError: a number out of range, or a tensor that does not broadcast to ``z``.
        """
        if not torch.is_tensor(value):
            return float(self.check(name, value))
        if not value.is_floating_point():
            raise TypeError(f"{name} must be {self.allowed}, or a floating-point tensor of such, was {value.dtype}")
        try:
            return upcast(value.expand(z.shape).movedim(dim, -1))
        except RuntimeError as error:
            raise ValueError(
                f"{name} must broadcast to the scores {tuple(z.shape)}, was of shape {tuple(value.shape)}"
            ) from error

    def _in_words(self) -> str:
        return " or ".join([self.allowed, *(f'"{word}"' for word in self.words)])


@dataclass(frozen=True)
class UpperBounds:
    """The parts of a map with upper bounds on its weights, ``function(z, u, dim=-1)``.

    Its gradient follows from the slopes ``s`` of the weights between their bounds (0 elsewhere): with ``m`` the mean
    of ``dp`` weighted by ``s``, ``dz = s (dp - m)``, and ``du = dp - m`` at the clipped weights.

    Attributes:
        rows: ``rows(x, u) -> (p, clipped)`` along the last axis of float32 or float64 tensors: the weights, and a
            boolean mask of those at their bound. u is at least 0; feasibility is not checked.
        slope: ``s`` as a function of p, for weights between their bounds.
        unbounded: the map without bounds, ``unbounded(z, dim=-1)``.
    """

    rows: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    slope: Callable[[Tensor], Tensor]
    unbounded: Callable[..., Tensor]


@dataclass(frozen=True)
class SparseMap:
    """A map from scores to weights, ``p(z) = argmax_p <p, z> - Omega(p)``.

    Attributes:
        name: what users call it.
        function: ``function(z, dim=-1, **settings) -> p``.
        regularizer: ``Omega(p, **settings)``, summed over the last axis. It gives the map its loss,
            ``L(z, y) = Omega*(z) + Omega(y) - <z, y>`` with gradient ``p - y``. None for a map that is not the
            gradient of a function, or is for attention only.
        settings: the settings of the function, by name.
        normalized: whether the weights sum to one.
        elementwise: whether a weight depends on its own score and on the number of scores alone. No other score, and
            no sink, takes anything from it.
        shift_invariant: whether adding a constant to all scores leaves the weights as they are.
        any_scores: whether it takes scores of every sign and sum. Only such maps can weigh attention.
        same_as: name and settings of the map that this one is a special case of; its code serves both.
        as_entmax: ``as_entmax(z, dim, **settings) -> (x, alpha)`` with ``function(z) = entmax(x, alpha)``, the source
            of thresholds and ragged supports. None for a map that is not an entmax.
        bounds: the parts of a map with upper bounds on its weights. Such maps weigh attention whose keys have a
            credit to spend; the settings are those of that credit.
    """

    name: str
    function: Callable[..., Tensor]
    regularizer: Callable[..., Tensor] | None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    normalized: bool = True
    elementwise: bool = False
    shift_invariant: bool = True
    any_scores: bool = True
    same_as: tuple[str, Mapping[str, float]] | None = None
    as_entmax: Callable[..., tuple[Tensor, float]] | None = None
    bounds: UpperBounds | None = None

    @property
    def attention_only(self) -> bool:
        """Whether it stands for no distribution over classes, so that no head can have it."""
        return not self.normalized and self.regularizer is None

    def check_names(self, settings: Iterable[str]) -> None:
        """Refuse settings that the map does not take.

        Raises:
            ValueError: one of them.
        """
        unknown = sorted(set(settings) - set(self.settings))
        if unknown:
            takes = ", ".join(map(repr, sorted(self.settings))) or "none"
            raise ValueError(f"{self.name} takes no setting {unknown[0]!r}; it takes {takes}")

    def loss_regularizer(self) -> Callable[..., Tensor]:
        """The regularizer of the map's Fenchel-Young loss.

        Raises:
            ValueError: the map has none.
        """
        if self.regularizer is None:
            known = ", ".join(repr(name) for name, known in sorted(MAPS.items()) if known.regularizer is not None)
            reason = self._without_loss
            raise ValueError(
                f"{self.name!r} {reason}, so it has no Fenchel-Young loss; the maps that have one are {known}"
            )
        return self.regularizer

    @property
    def _without_loss(self) -> str:
        """The reason why it has no loss."""
        if self.attention_only:
            return NO_DISTRIBUTION
        return "is not the gradient of a function" if self.bounds is None else "needs bounds on its weights"


MAPS: dict[str, SparseMap] = {}


def register(sparse_map: SparseMap) -> None:
    """Register a map under its name.

    Raises:
        ValueError: the name is taken.
    """
    if sparse_map.name in MAPS:
        raise ValueError(f"a sparse map named {sparse_map.name!r} is registered already")
    MAPS[sparse_map.name] = sparse_map


def underlying(name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The map that ``name`` is a special case of, with its settings; ``name`` and ``settings`` where it is none.

    >>> underlying("sparsemax", {})
    ('entmax', {'alpha': 2.0})
    """
    name, own = get_map(name).same_as or (name, settings)
    return name, dict(own)


def get_map(name: str) -> SparseMap:
    """The map registered under ``name``.

    >>> get_map("entmax15").normalized
    True

    Raises:
        ValueError: no map has that name.
    """
    if not isinstance(name, str) or name not in MAPS:
        raise ValueError(f"unknown sparse map {name!r}; choose one of {', '.join(map(repr, sorted(MAPS)))}")
    return MAPS[name]
