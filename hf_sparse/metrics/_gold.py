"""The probability a distribution gives to the observed class, and which positions count."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.rows import upcast

REDUCTIONS = ("mean", "none")


def gold_probability(p: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """``p_x`` in at least float32 (...), 0 where ignored, and whether each position counts (...), bool.

    Raises:
        TypeError: targets that are not integers, or weights that are not floating-point.
        ValueError: shapes that do not fit.
        IndexError: a target outside [0, V).
    """
    if not p.is_floating_point():
        raise TypeError(f"probabilities must be floating-point, were {p.dtype}")
    if target.is_floating_point() or target.dtype == torch.bool:
        raise TypeError(f"target must hold class indices (int64), was {target.dtype}")
    if p.shape[:-1] != target.shape:
        raise ValueError(
            f"probabilities (..., V) and target (...) must agree, were {tuple(p.shape)} and {tuple(target.shape)}"
        )
    counted = target != ignore_index
    valid = ~counted | ((target >= 0) & (target < p.shape[-1]))
    if not bool(valid.all()):
        raise IndexError(
            f"target must be in [0, {p.shape[-1]}) or {ignore_index} (ignored), was {int(target[~valid][0])}"
        )
    index = target.long().masked_fill(~counted, 0)
    gold = upcast(p.gather(-1, index[..., None])[..., 0])
    return torch.where(counted, gold, 0.0), counted


def average(values: Tensor, counted: Tensor, reduction: str) -> Tensor:
    """The mean over the positions that count (NaN when none does), or the values with 0 where they do not."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(map(repr, REDUCTIONS))}, was {reduction!r}")
    values = torch.where(counted, values, 0.0)
    return values if reduction == "none" else values.sum() / counted.sum()
