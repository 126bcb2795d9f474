"""What a sparse map is: its function, its regularizer, its settings. Everything else is derived from this record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Setting:
    """One setting of a map: its default and the range it may take.

    Attributes:
        default: value used when the setting is not given.
        allowed: the range in words, as it appears in error messages ("must be ``allowed``").
        holds: tells whether a number lies in that range; None for a setting that is no number but True or False.
        words: what may stand for the number: ``"auto"`` for one that ``sparsify`` works out from the model,
            ``"given"`` for one that comes with every call, ``"predicted"`` and ``"guided"`` for one that the model
            works out from its input.
        from_real: for a setting that can be learned, a map from all real numbers into its range.
        to_real: the inverse of ``from_real``.
    """

    default: float | str | bool
    allowed: str
    holds: Callable[[float], bool] | None
    words: tuple[str, ...] = ()
    from_real: Callable[[Tensor], Tensor] | None = None
    to_real: Callable[[Tensor], Tensor] | None = None

    def check(self, name: str, value: Any) -> float | str | bool:
        """Return ``value`` as a float (or one of the words, or a bool); raise if the setting cannot take it."""
        if isinstance(value, str) and value in self.words:
            return value
        if isinstance(value, bool) == (self.holds is not None) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be {self._in_words()}, was {value!r}")
        if self.holds is None:
            return value
        if not self.holds(value):
            raise ValueError(f"{name} must be {self._in_words()}, was {value}")
        return float(value)

    def _in_words(self) -> str:
        return " or ".join([self.allowed, *(f'"{word}"' for word in self.words)])


@dataclass(frozen=True)
class UpperBounds:
    """What a map with upper bounds on its weights, ``function(z, u, dim=-1)``, is made of.

    Its gradient follows from the slopes ``s`` of the weights between their bounds (0 elsewhere): with ``m`` the mean
    of ``dp`` weighted by ``s``, ``dz = s (dp - m)``, and ``du = dp - m`` at the weights their bound holds down.

    Attributes:
        rows: ``rows(x, u) -> (p, clipped)`` along the last axis of float32 or float64 tensors, u at least 0 and not
            checked to be feasible: the weights, and which of them their bound holds down.
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
        name: how users ask for it.
        function: ``function(z, dim=-1, **settings) -> p``.
        regularizer: ``Omega(p, **settings)``, summed over the last axis. It gives the map its loss,
            ``L(z, y) = Omega*(z) + Omega(y) - <z, y>`` with gradient ``p - y``. None for a map that is the gradient
            of no function.
        settings: the settings the function takes, by name.
        normalized: whether the weights sum to one. Only such maps can weigh attention.
        shift_invariant: whether adding a constant to all scores leaves the weights as they are.
        any_scores: whether it takes scores of every sign and sum. Only such maps fit attention, which has any.
        same_as: the map and the settings that this one is another name for; what is written for that map serves it.
        as_entmax: ``as_entmax(z, dim, **settings) -> (x, alpha)`` with ``function(z) = entmax(x, alpha)``: where
            thresholds and ragged supports come from. None for a map that is no entmax of anything.
        bounds: for a map with upper bounds on its weights, what it is made of. Such maps weigh attention whose keys
            have a credit to spend; the settings are those of that credit.
    """

    name: str
    function: Callable[..., Tensor]
    regularizer: Callable[..., Tensor] | None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    normalized: bool = True
    shift_invariant: bool = True
    any_scores: bool = True
    same_as: tuple[str, Mapping[str, float]] | None = None
    as_entmax: Callable[..., tuple[Tensor, float]] | None = None
    bounds: UpperBounds | None = None

    def loss_regularizer(self) -> Callable[..., Tensor]:
        """The regularizer, for a loss.

        Raises:
            ValueError: the map has none.
        """
        if self.regularizer is None:
            known = ", ".join(repr(name) for name, known in sorted(MAPS.items()) if known.regularizer is not None)
            reason = "is the gradient of no function" if self.bounds is None else "needs bounds on its weights"
            raise ValueError(
                f"{self.name!r} {reason}, so that it has no Fenchel-Young loss; the maps that have one are {known}"
            )
        return self.regularizer


MAPS: dict[str, SparseMap] = {}


def register(sparse_map: SparseMap) -> None:
    """Make a map known by its name. A name is taken once."""
    if sparse_map.name in MAPS:
        raise ValueError(f"a sparse map named {sparse_map.name!r} is registered already")
    MAPS[sparse_map.name] = sparse_map


def underlying(name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The map that ``name`` with ``settings`` is another name for, with its own settings; else the two as given.

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
    if name not in MAPS:
        raise ValueError(f"unknown sparse map {name!r}; choose one of {', '.join(map(repr, sorted(MAPS)))}")
    return MAPS[name]
