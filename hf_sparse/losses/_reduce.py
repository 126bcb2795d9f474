"""From one loss a row to what the caller asked for."""

from __future__ import annotations

import torch
from torch import Tensor

REDUCTIONS = ("mean", "sum", "none")


def check_reduction(reduction: str, num_items: int | Tensor | None = None) -> None:
    """Raise ValueError for an unknown reduction, or a count given with a reduction that has no use for it."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(map(repr, REDUCTIONS))}, was {reduction!r}")
    if num_items is not None and reduction != "mean":
        raise ValueError(f'num_items divides the sum and needs reduction="mean", was given with {reduction!r}')


def reduce_rows(
    loss: Tensor, row_weight: Tensor, shape: torch.Size, reduction: str, num_items: int | Tensor | None = None
) -> Tensor:
    """Weigh the row losses (N,) and reduce them; rows of weight 0 add exactly nothing, even where they are NaN.

    The mean divides by the sum of the weights (0 if that is 0), or by ``num_items`` when it is given, so that
    gradient accumulation over several batches can divide by the items of all of them.
    """
    loss = torch.where(row_weight == 0, 0.0, loss) * row_weight
    if reduction == "none":
        return loss.reshape(shape)
    if reduction == "sum":
        return loss.sum()
    total = row_weight.sum() if num_items is None else torch.as_tensor(num_items, device=loss.device)
    return loss.sum() / torch.where(total == 0, 1.0, total.to(loss.dtype))
