"""Upper bounds on the weights, and the settings of the credit from which attention takes them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .registry import Setting
from .rows import accumulation_dtype, check_scores, is_readable

# Bounds are float32 differences between fertility and the attention already spent: rounding must not make them
# infeasible.
_NEGATIVE, MISSING_MASS = 1e-6, 1e-4
# Iterations before a row falls back to sorting.
ROUNDS_BEFORE_SORTING = 5


def _identity(x: Tensor) -> Tensor:
    return x


# Words for a fertility that the model works out from its source.
SOURCE_WORDS = ("predicted", "guided")
CREDIT: dict[str, Setting] = {
    "fertility": Setting.between(0, 1e6, default=2.0, words=("given", *SOURCE_WORDS)),
    "exhaustion": Setting.between(0, 1e6, default=0.0),
    "sink": Setting(True, "True or False", None),
    "sink_score": Setting.between(-1e6, 1e6, default=0.0, from_real=_identity, to_real=_identity),
    "shared": Setting(False, "True or False", None),
    "detach": Setting(False, "True or False", None),
}


def settled_or_sorted(
    rounds: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], by_sorting: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """A solver of rows ``(x, u)``: a few iterations where they converge, as for most rows; sorting for the others.

    A sort costs as much as all other work on a row. The iterations read values to know when to stop; in compiled code
    and off the CPU all rows are sorted instead.

    Args:
        rounds: ``rounds(x, u) -> (found, settled)``, settled (..., 1) boolean.
        by_sorting: ``by_sorting(x, u) -> found``.
    """

    def solve(x: Tensor, u: Tensor) -> Tensor:
        if not (is_readable(x) and is_readable(u)) or x.device.type != "cpu":
            return by_sorting(x, u)
        found, settled = rounds(x, u)
        if not bool(settled.all()):
            left = ~settled[..., 0]
            found[left] = by_sorting(x[left], u[left])
        return found

    return solve


def map_bounded_rows(
    rows: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], z: Tensor, u: Tensor, dim: int
) -> Tensor:
    """The weights of ``rows(x, u)``, which maps the last axis of two float32 or float64 tensors, along ``dim``.

    Raises:
        TypeError, IndexError: see ``check_scores``; or bounds that are not a floating-point tensor.
        ValueError: see ``check_scores``; or bounds that do not broadcast to the scores, are negative or NaN, or sum to
            less than one over the unmasked entries.
    """
    check_scores(z, dim)
    if not torch.is_tensor(u) or not u.is_floating_point():
        raise TypeError(
            f"upper bounds must be a floating-point tensor, was {u.dtype if torch.is_tensor(u) else type(u)}"
        )
    try:
        u = u.expand(z.shape)
    except RuntimeError as error:
        raise ValueError(
            f"upper bounds must broadcast to the scores {tuple(z.shape)}, was of shape {tuple(u.shape)}"
        ) from error
    x, bound = (tensor.movedim(dim, -1).to(accumulation_dtype(z, u)) for tensor in (z, u))
    if is_readable(x) and is_readable(bound):
        _check_bounds(x, bound)
    return rows(x, bound.clamp(min=0))[0].to(z.dtype).movedim(-1, dim)


def _check_bounds(x: Tensor, u: Tensor) -> None:
    if not bool((u >= -_NEGATIVE).all()):
        raise ValueError(f"upper bounds must be >= 0, the smallest was {float(u.min()):g}")
    masked = x == -torch.inf
    mass = u.masked_fill(masked, 0.0).sum(-1).masked_fill(masked.all(-1), 1.0)
    if not bool((mass >= 1 - MISSING_MASS).all()):
        raise ValueError(
            f"the upper bounds of a row's unmasked entries must sum to at least 1, "
            f"the least sum was {float(mass.min()):g}"
        )
