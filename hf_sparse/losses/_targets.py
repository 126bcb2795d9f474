"""Arguments that the losses share: options, logits and targets, checked; and the reduction over rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, TypedDict

import torch
from torch import Tensor

from ..functional.arguments import (
    check_items,
    check_number,
    check_tensor,
    class_indices,
    items_divisor,
    require,
)
from ..functional.log_zero import LOG_ZERO, with_zeros
from ..functional.rows import accumulation_dtype, is_readable

# Settings of a map, as numbers; for entmax alpha may be a tensor.
MapSettings: TypeAlias = Mapping[str, float | Tensor]

_REDUCTIONS = ("mean", "sum", "none")


class SharedOptions(TypedDict, total=False):
    """Keyword options of every Fenchel-Young loss, fused or not."""

    ignore_index: int
    reduction: str
    label_smoothing: float
    num_items: int | Tensor | None
    impl: str


class LossOptions(SharedOptions, total=False):
    """Keyword options of ``fenchel_young_loss``, which documents them."""

    weight: Tensor | None


def check_options(reduction: str, num_items: int | Tensor | None = None, label_smoothing: float = 0.0) -> None:
    """Refuse options that no loss takes.

    Raises:
        ValueError: an unknown reduction, a count with a reduction that does not divide or below 0, smoothing outside
            [0, 1].
        TypeError: a count or smoothing that is no number.
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(map(repr, _REDUCTIONS))}, was {reduction!r}")
    if num_items is not None:
        check_items("num_items", num_items)
    if num_items is not None and reduction != "mean":
        raise ValueError(f'num_items divides the sum and needs reduction="mean", was given with {reduction!r}')
    check_number("label_smoothing", label_smoothing, "in [0, 1]", lambda share: 0 <= share <= 1)


def check_logits(logits: Tensor, weight: Tensor | None = None) -> None:
    """Refuse logits that are no scores of classes, and class weights that do not fit them.

    Raises:
        TypeError: logits that are not floating-point.
        ValueError: logits without a class, a weight that is not (V,), or a first row of log-probabilities that have
            zeros among them.
    """
    check_tensor("logits", logits)
    if weight is not None:
        check_tensor("weight", weight)
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating-point, were {logits.dtype}")
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits must be (..., V) with V >= 1, were {tuple(logits.shape)}")
    if weight is not None and weight.shape != logits.shape[-1:]:
        raise ValueError(
            f"weight must be of shape ({logits.shape[-1]},), one entry per class, was {tuple(weight.shape)}"
        )
    if is_readable(logits) and logits.numel() > 0:
        row = logits.detach().reshape(-1, logits.shape[-1])[0]
        if row.is_cuda or bool(row.amin() < LOG_ZERO / 2):  # else nothing in it is on the floor
            require(
                ~with_zeros(row),
                lambda: ValueError(
                    "logits are log-probabilities of a sparse distribution, from a call of a sparse model without "
                    "labels; pass labels to the model, which computes this loss, or take raw scores inside "
                    "hf_sparse.raw_scores(model)"
                ),
            )


def class_targets(logits: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Flatten class targets.

    Args:
        logits: (..., V); only the shape is read.
        target: (...).
        ignore_index: target of rows that do not count.

    Returns:
        Class indices (N,), int64, 0 where ignored, and a mask (N,), bool, of the rows that count.

    Raises:
        TypeError: targets that are not integers.
        ValueError: shapes that do not fit.
        IndexError: a target outside [0, V).
    """
    if target.dtype == torch.bool:
        raise TypeError("target must hold class indices (int64) or probabilities (floating-point), was torch.bool")
    if logits.shape[:-1] != target.shape:
        raise ValueError(
            f"logits (..., V) and target (...) must agree, were {tuple(logits.shape)} and {tuple(target.shape)}"
        )
    y, counted = class_indices(target, logits.shape[-1], ignore_index)
    return y.reshape(-1), counted.reshape(-1)


def soft_targets(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Flatten target distributions.

    Args:
        logits: (..., V); only shape and dtype are read.
        target: (..., V), floating-point; rows of zeros do not count.

    Returns:
        Distributions (N, V), float32 or float64, and a mask (N,), bool, of the rows that count.

    Raises:
        ValueError: shapes that differ, a target that requires a gradient, or a row that is no distribution.
    """
    if logits.shape != target.shape:
        raise ValueError(
            f"logits and target probabilities must both be (..., V), were {tuple(logits.shape)} and "
            f"{tuple(target.shape)}"
        )
    if target.requires_grad:
        raise ValueError("target probabilities must not require a gradient; detach() them")
    y = target.reshape(-1, target.shape[-1]).to(accumulation_dtype(logits))
    total = y.sum(-1)
    counted = total != 0
    if is_readable(y):
        # A sum of V probabilities rounded to half precision may be off by that precision.
        slack = max(1e-3, torch.finfo(target.dtype).eps)
        require(
            (y.amin(-1) >= 0) & (~counted | ((total - 1).abs() <= slack)),
            lambda: ValueError(
                "target probabilities must be >= 0 and sum to one in each row (or all be zero: ignored); the lowest "
                f"was {float(y.min())}, sums went from {float(total.min())} to {float(total.max())}"
            ),
        )
    return y, counted


def smoothed_one_hot(
    num_classes: int, label_smoothing: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """A one-hot distribution e and ``(1 - eps) e + eps / V``, (1, V) each: a regularizer is the same for every e."""
    one_hot = torch.zeros((1, num_classes), dtype=dtype, device=device)
    one_hot[0, 0] = 1.0
    return one_hot, (1 - label_smoothing) * one_hot + label_smoothing / num_classes


def reduce_rows(
    loss: Tensor, row_weight: Tensor, shape: torch.Size, reduction: str, num_items: int | Tensor | None = None
) -> Tensor:
    """Weigh the row losses and reduce them; rows of weight 0 add exactly nothing, even where they are NaN.

    Args:
        loss: (N,).
        row_weight: (N,), in the dtype of the losses; or bool, the rows that count, with a weight of 1.
        shape: shape of the targets, for ``reduction="none"``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        num_items: divisor of the mean, so that gradient accumulation can divide by the items of all its batches; by
            default the sum of the weights (a mean over no weight is 0).

    Raises:
        ValueError: a number of items of 0, though some rows have weight.
    """
    counted = row_weight if row_weight.dtype == torch.bool else row_weight != 0
    loss = torch.where(counted, loss, 0.0)
    if row_weight is not counted:
        loss = loss * row_weight
    if reduction == "none":
        return loss.reshape(shape)
    if reduction == "sum":
        return loss.sum()
    if num_items is not None:
        return loss.sum() / items_divisor(num_items, counted, loss.dtype)
    total = row_weight.sum()
    return loss.sum() / (total + (total == 0))
