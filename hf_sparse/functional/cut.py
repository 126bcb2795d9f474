"""Scores that are too low for any weight, told from the largest ones of a row alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any

from ._few_rows import raised
from .newton import exponent_of, is_softmax
from .registry import underlying

_EPS = 2.0**-23
# What float32 may be off by in a threshold in units of (alpha - 1) z, and in scores: as in the kernels.
_OF_THRESHOLD, _OF_SCORES = 64 * _EPS, 16 * _EPS


def has_cut(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether ``score_cut`` knows a map: alpha-ReLU, and the entmax family with alpha above 1 and at most 2."""
    name, settings = underlying(name, settings)
    return name == "alpha_relu" or (name == "entmax" and not is_softmax(settings["alpha"]) and settings["alpha"] <= 2)


def score_cut(name: str, settings: Mapping[str, Any], largest: list[float]) -> float:
    """A score below which no entry of a row has weight.

    For entmax it is the threshold of the subset ``largest``, which is at most that of the row; for alpha-ReLU the
    given threshold. Rounding in float32, of scores and of the map, is allowed for.

    Args:
        name: a map for which ``has_cut`` holds.
        settings: its own settings.
        largest: some scores of the row, in any order; the higher they are, the higher the cut.

    Returns:
        The cut, in units of z; ``-inf`` where none is given, or one is NaN or ``inf``.

    >>> round(score_cut("entmax15", {}, [3.0, 2.0]), 4), score_cut("alpha_relu", {"alpha": 1.5, "tau": 0.0}, [])
    (1.1771, 0.0)
    """
    name, settings = underlying(name, settings)
    alpha = settings["alpha"]
    if name == "alpha_relu":
        cut = settings["tau"] / (alpha - 1)
        return cut - _OF_SCORES * abs(cut)
    top = max(largest, default=-inf)
    if not isfinite(top):
        return -inf
    x = [(score - top) * (alpha - 1) for score in largest]
    if not all(entry <= 0 for entry in x):
        return -inf
    tau = raised(x, -1.0, exponent_of(alpha), 20)
    return top + (tau - _OF_THRESHOLD) / (alpha - 1) - _OF_SCORES * abs(top)
