"""What a loss may aim at: a class a row, or a distribution over the classes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.rows import accumulation_dtype, in_graph


def class_targets(logits: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Class indices (N,), int64, 0 where ignored, and whether each row counts (N,), bool.

    Raises:
        TypeError: boolean targets.
        ValueError: shapes that do not fit.
        IndexError: a target outside [0, V).
    """
    if target.dtype == torch.bool:
        raise TypeError("target must hold class indices (int64) or probabilities (floating-point), was torch.bool")
    if logits.shape[:-1] != target.shape:
        raise ValueError(
            f"logits (..., V) and target (...) must agree, were {tuple(logits.shape)} and {tuple(target.shape)}"
        )
    num_classes = logits.shape[-1]
    counted = target != ignore_index
    if not in_graph():
        valid = ~counted | ((target >= 0) & (target < num_classes))
        if not bool(valid.all()):
            raise IndexError(
                f"target must be in [0, {num_classes}) or {ignore_index} (ignored), was {int(target[~valid][0])}"
            )
    return target.long().masked_fill(~counted, 0).reshape(-1), counted.reshape(-1)


def soft_targets(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Target distributions (N, V) in the compute dtype, and whether each row counts (N,): rows of zeros do not.

    Raises:
        ValueError: shapes that differ, a target that wants a gradient, or a row that is no distribution.
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
    if not in_graph():
        # A sum of V probabilities rounded to half precision may be off by that precision.
        slack = max(1e-3, torch.finfo(target.dtype).eps)
        if bool((y < 0).any()) or not bool((~counted | ((total - 1).abs() <= slack)).all()):
            raise ValueError(
                "target probabilities must be >= 0 and sum to one in each row (or all be zero: ignored); the lowest "
                f"was {float(y.min())}, sums went from {float(total.min())} to {float(total.max())}"
            )
    return y, counted
