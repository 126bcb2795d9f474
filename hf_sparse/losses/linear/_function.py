"""The arguments all fused linear losses share: checked, flattened, and the result reduced."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...functional import get_map
from ...functional.rows import accumulation_dtype
from .._dispatch import chosen_for
from .._reduce import check_reduction, reduce_rows
from .._targets import class_targets
from ._rows import LinearLoss, linear_rows
from ._triton import solved_linear_loss


def linear_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    rows: LinearLoss,
    name: str,
    settings: Mapping[str, Any],
    *,
    chunk_size: int | None = None,
    impl: str = "auto",
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    num_items: int | Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
) -> Tensor:
    """The loss of a linear layer's output under a map, over the targets that count; see ``linear_entmax_loss``.

    ``rows`` computes it where the Triton kernels do not.
    """
    check_reduction(reduction, num_items)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], was {label_smoothing}")
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"softcap must be > 0 and finite, or None, was {softcap}")
    if softcap is not None and label_smoothing > 0:
        raise ValueError(
            "label_smoothing of soft-capped logits needs all of them, which a fused loss never has; "
            "use softcap=None, label_smoothing=0.0, or the loss of the logits"
        )
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, was {scale}")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, or None, was {chunk_size}")
    if target.is_floating_point():
        raise TypeError(
            f"target must hold class indices (int64), was {target.dtype}; a fused loss takes no soft targets"
        )
    if weight.dim() != 2 or hidden.shape[-1:] != weight.shape[1:]:
        raise ValueError(
            f"hidden (..., D) and weight (V, D) must agree, were {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must be of shape ({len(weight)},), one a class, was {tuple(bias.shape)}")
    device = weight.device.type
    # Under autocast the product is done in its dtype, as torch.nn.functional.linear would, and the rest is not.
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    # Only dtype, device and shape of the logits are looked at, and an expanded scalar has them for free.
    logits = hidden.new_empty((), dtype=dtype).expand(*hidden.shape[:-1], len(weight))
    y, counted = class_targets(logits, target, ignore_index)
    impl = chosen_for(name, settings, logits, impl)
    if impl == "triton":
        rows = solved_linear_loss(**settings)
    h, weight = hidden.reshape(-1, weight.shape[1]).to(dtype), weight.to(dtype)
    loss_dtype = accumulation_dtype(weight)
    kept = counted.nonzero()[:, 0]
    if len(kept) == 0:
        # Empty sums keep the graph: the gradients are zeros, not None.
        nothing = h[:0].sum() + weight[:0].sum() + (0 if bias is None else bias[:0].sum())
        loss = torch.zeros(len(y), dtype=loss_dtype, device=h.device) + nothing
        return reduce_rows(loss, counted.to(loss_dtype), target.shape, reduction, num_items)
    every = len(kept) == len(counted)
    bias = None if bias is None else bias.to(dtype)
    rows_kept = h if every else h[kept]
    with torch.autocast(device, enabled=False):
        loss = linear_rows(
            rows_kept, weight, bias, y[kept], float(scale), softcap, float(label_smoothing), rows, impl, chunk_size
        )
    if label_smoothing > 0:
        loss = loss + _smoothing_constant(len(weight), loss, label_smoothing, name, settings)
    if not every:
        loss = torch.zeros(len(y), dtype=loss.dtype, device=loss.device).index_put((kept,), loss)
    return reduce_rows(loss, counted.to(loss.dtype), target.shape, reduction, num_items)


def _smoothing_constant(num_classes: int, like: Tensor, eps: float, name: str, settings: Mapping[str, Any]) -> Tensor:
    """``Omega((1 - eps) e_y + eps / V) - Omega(e_y)``, which has no gradient."""
    regularizer = partial(get_map(name).loss_regularizer(), **settings)
    certain = like.new_zeros(1, num_classes)
    certain[0, 0] = 1.0
    return regularizer((1 - eps) * certain + eps / num_classes) - regularizer(certain)
