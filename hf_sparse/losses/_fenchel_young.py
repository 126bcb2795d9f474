"""The Fenchel-Young loss of any registered map: its regularizer gives the value, its weights give the gradient."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..functional.rows import accumulation_dtype
from ._dispatch import checked_settings, loss_map, row_losses
from ._reduce import check_reduction, reduce_rows
from ._targets import class_targets, soft_targets


def fenchel_young_loss(
    logits: Tensor,
    target: Tensor,
    name: str,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    num_items: int | Tensor | None = None,
    impl: str = "auto",
    **settings: float | Tensor,
) -> Tensor:
    """``L(z, y) = Omega*(z) + Omega(y) - <z, y>`` for the map called ``name``, in nats-like units of ``Omega``.

    It is non-negative, zero exactly when the map puts its weights on the target, and its gradient is ``p - y``.
    For softmax it is the cross-entropy (of distributions: the Kullback-Leibler divergence, in nats).

    Args:
        logits: raw scores (..., V), any floating-point dtype; ``-inf`` masks an entry.
        target: class indices (...), int64, or target distributions y (..., V), floating-point and constant; a
            distribution of zeros is an ignored row.
        name: a registered map.
        weight: (V,) class weights. A row weighs ``<weight, y>``, and the mean is weighted by it, as in
            ``torch.nn.functional.cross_entropy`` with class indices.
        ignore_index: class targets with this value add nothing to loss or gradient, whatever their logits hold.
        reduction: ``"mean"`` over the targets that count, ``"sum"``, or ``"none"``.
        label_smoothing: ``eps`` in [0, 1]: the target becomes ``(1 - eps) y + eps / V``.
        num_items: divide the sum by this count instead, for gradient accumulation over several batches (Trainer's
            ``num_items_in_batch``); only with ``reduction="mean"``.
        impl: what computes it, ``"auto"``, ``"torch"``, ``"cpp"`` or ``"triton"``, as in
            ``hf_sparse.functional.entmax``; the kernels know the entmax family and alpha-ReLU.
        **settings: the map's settings (``alpha``, ``tau``). A tensor ``alpha`` gets its gradient,
            ``d Omega(y)/d alpha - d Omega(p)/d alpha`` at fixed p; it lies in [1, 2] and broadcasts to (..., 1).

    Returns:
        A scalar, or (...) for ``reduction="none"``; float32, or float64 for float64 logits. With every target
        ignored it is 0, not NaN.

    Raises:
        ValueError: shapes that do not fit, an unknown reduction, smoothing outside [0, 1], an unknown or bad setting,
            probabilities that are none, an unknown ``impl`` or one that does not take these logits or this map.
        TypeError: logits that are not floating-point, boolean targets.
        IndexError: a target outside [0, V).
        KernelUnavailable: an explicit kernel where it cannot be built or run.

    Source: Blondel et al. 2020, Eq. 14; Peters et al. 2019, Eq. 9 and 10; label smoothing as in Peters and
    Martins 2021, ``L(z, y) + eps (<z, y> - mean z) + Omega(smoothed y) - Omega(y)``.
    Cost: long rows of the entmax family and of alpha-ReLU are read once, and the backward writes zeros and the
    support; everything else takes one evaluation of the map and a few passes.
    """
    check_reduction(reduction, num_items)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], was {label_smoothing}")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating-point, were {logits.dtype}")
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits must be (..., V) with V >= 1, were {tuple(logits.shape)}")
    num_classes = logits.shape[-1]
    if weight is not None and weight.shape != (num_classes,):
        raise ValueError(f"weight must be of shape ({num_classes},), one a class, was {tuple(weight.shape)}")
    soft = target.is_floating_point()
    y, counted = soft_targets(logits, target) if soft else class_targets(logits, target, ignore_index)
    z = logits.reshape(-1, num_classes)
    all_settings = checked_settings(name, settings)
    if torch.is_tensor(all_settings.get("alpha")):
        all_settings["alpha"] = _alpha_of_rows(all_settings["alpha"], logits)
    if soft and label_smoothing > 0:
        y = torch.where(counted[:, None], (1 - label_smoothing) * y + label_smoothing / num_classes, 0.0)
    loss = row_losses(z, y, counted, name, all_settings, impl)
    if not soft and label_smoothing > 0:
        loss = loss + _smoothing(z, y, name, label_smoothing, all_settings)
    row_weight = counted.to(loss.dtype)
    if weight is not None:
        weight = weight.to(loss.dtype)
        row_weight = row_weight * (y.to(loss.dtype) @ weight if soft else weight[y])
    return reduce_rows(loss, row_weight, logits.shape[:-1], reduction, num_items)


def _alpha_of_rows(alpha: Tensor, logits: Tensor) -> Tensor:
    """A tensor alpha, one a row: (N, 1)."""
    rows = (*logits.shape[:-1], 1)
    try:
        return alpha.broadcast_to(rows).reshape(-1, 1)
    except RuntimeError as error:
        raise ValueError(
            f"alpha must broadcast over the rows of the logits, to {rows}; was {tuple(alpha.shape)}"
        ) from error


def _smoothing(z: Tensor, y: Tensor, name: str, eps: float, settings: dict[str, float | Tensor]) -> Tensor:
    """What smoothing a one-hot target adds to its loss: ``eps (z_y - mean z) + Omega(smoothed) - Omega(e_y)``."""
    regularizer = partial(loss_map(name, settings).loss_regularizer(), **settings)
    dtype = accumulation_dtype(z)
    certain = torch.zeros((1, z.shape[1]), dtype=dtype, device=z.device)
    certain[0, 0] = 1.0
    smoothed = (1 - eps) * certain + eps / z.shape[1]
    # From the row's first entry up, so that a large offset cancels before anything is summed.
    spread = (z.gather(-1, y[:, None]) - z[:, :1]).to(dtype)[:, 0] - (z - z[:, :1]).mean(-1, dtype=dtype)
    return eps * spread + regularizer(smoothed) - regularizer(certain)
