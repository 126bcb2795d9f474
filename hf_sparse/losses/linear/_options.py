"""Options of fused losses and the layer they are given: types and checks."""

from __future__ import annotations

from torch import Tensor

from ...functional.arguments import between, check_count, check_number, check_tensor
from .._targets import SharedOptions, check_options


class LinearOptions(SharedOptions, total=False):
    """Keyword options of ``linear_fenchel_young_loss``, which documents them."""

    softcap: float | None
    scale: float
    chunk_size: int | None


def check_linear_options(
    reduction: str,
    num_items: int | Tensor | None,
    label_smoothing: float,
    softcap: float | None,
    scale: float,
    chunk_size: int | None,
) -> None:
    """Refuse options that no fused loss takes.

    Raises:
        ValueError: an option out of range, or label smoothing together with a softcap.
        TypeError: an option of the wrong type.
    """
    check_options(reduction, num_items, label_smoothing)
    if softcap is not None:
        words, holds = between(1e-4, 1e6)
        check_number("softcap", softcap, f"{words}, or None", holds)
    if softcap is not None and label_smoothing > 0:
        raise ValueError(
            "label_smoothing of soft-capped logits needs all of them, which a fused loss never has; "
            "use softcap=None, label_smoothing=0.0, or the loss of the logits"
        )
    check_number("scale", scale, *between(-1e6, 1e6))
    if chunk_size is not None:
        check_count("chunk_size", chunk_size, ", or None")


def check_layer(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> None:
    """Refuse a linear layer whose parts do not fit, and targets that are no classes.

    Raises:
        TypeError: floating-point targets, or hidden states that are not floating-point.
        ValueError: shapes that do not fit.
    """
    given = {"hidden": hidden, "weight": weight, "target": target, **({} if bias is None else {"bias": bias})}
    for name, tensor in given.items():
        check_tensor(name, tensor)
    for name, tensor in (("hidden", hidden), ("weight", weight)):
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating-point, was {tensor.dtype}")
    if target.is_floating_point():
        raise TypeError(
            f"target must hold class indices (int64), was {target.dtype}; a fused loss takes no soft targets"
        )
    if weight.dim() != 2 or hidden.shape[-1:] != weight.shape[1:]:
        raise ValueError(
            f"hidden (..., D) and weight (V, D) must agree, were {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must be of shape ({len(weight)},), one entry per class, was {tuple(bias.shape)}")
