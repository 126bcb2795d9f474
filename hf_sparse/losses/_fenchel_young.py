"""The Fenchel-Young loss of any registered map: its regularizer gives the value, its weights give the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.arguments import check_tensor
from ._dispatch import checked_settings, loss_map, row_losses
from ._smoothing import smoothing_share
from ._targets import (
    check_logits,
    check_options,
    class_targets,
    reduce_rows,
    soft_targets,
)


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
    """``L(z, y) = Omega*(z) + Omega(y) - <z, y>`` for the map called ``name``, in the units of ``Omega``.

    It is non-negative, zero exactly when the map puts its weights on the target, and its gradient is ``p - y``.
    For softmax it is the cross-entropy (of distributions: the Kullback-Leibler divergence, in nats).

    Args:
        logits: raw scores (..., V), any floating-point dtype; ``-inf`` masks an entry.
        target: class indices (...), int64, or target distributions y (..., V), floating-point and constant; a
            distribution of zeros is an ignored row.
        name: a registered map.
        weight: (V,) class weights. A row weighs ``<weight, y>``, with y as given, before smoothing; the mean is
            weighted by it, as in ``torch.nn.functional.cross_entropy`` with class indices.
        ignore_index: class targets with this value add nothing to loss or gradient, whatever their logits hold.
        reduction: ``"mean"`` over the targets that count, ``"sum"``, or ``"none"``.
        label_smoothing: ``eps`` in [0, 1]: the target becomes ``(1 - eps) y + eps / V``.
        num_items: divide the sum by this count instead, for gradient accumulation over several batches (Trainer's
            ``num_items_in_batch``); only with ``reduction="mean"``. 0 only where no target counts: the loss is 0.
        impl: implementation, ``"auto"``, ``"torch"``, ``"cpp"`` or ``"triton"``, as in
            ``hf_sparse.functional.entmax``; the kernels know the entmax family and alpha-ReLU.
        **settings: the map's settings (``alpha``, ``tau``). A tensor ``alpha`` gets its gradient,
            ``d Omega(y)/d alpha - d Omega(p)/d alpha`` at fixed p; it lies in [1, 2] and broadcasts to (..., 1).

    Returns:
        A scalar, or (...) for ``reduction="none"``; float32, or float64 for float64 logits. With every target
        ignored it is 0, not NaN.

    Raises:
        ValueError: shapes that do not fit, an unknown reduction, smoothing outside [0, 1], an unknown or bad setting,
            target rows that are no distributions, an ``impl`` that is unknown or does not take these logits or this
            map.
        TypeError: logits that are not floating-point, boolean targets.
        IndexError: a target outside [0, V).
        KernelUnavailable: an explicit kernel where it cannot be built or run.

    Source: Blondel et al. 2020, Eq. 14; Peters et al. 2019, Eq. 9 and 10; label smoothing as in Peters and
    Martins 2021, ``L(z, y) + eps (<z, y> - mean z) + Omega(smoothed y) - Omega(y)``.
    Cost: long rows of the entmax family and of alpha-ReLU are read once, and the backward writes zeros and the
    support; everything else takes one evaluation of the map and a few passes.

    >>> fenchel_young_loss(torch.tensor([[1.0, 0.5, 0.0]]), torch.tensor([0]), "sparsemax")  # p = (0.75, 0.25, 0)
    tensor(0.0625)
    """
    check_options(reduction, num_items, label_smoothing)
    check_logits(logits, weight)
    check_tensor("target", target)
    num_classes = logits.shape[-1]
    soft = target.is_floating_point()
    y, counted = soft_targets(logits, target) if soft else class_targets(logits, target, ignore_index)
    z = logits.reshape(-1, num_classes)
    all_settings = checked_settings(name, settings)
    if isinstance(alpha := all_settings.get("alpha"), Tensor):
        all_settings["alpha"] = _alpha_per_row(alpha, logits)
    weighed = y  # a smoothed row weighs as much as it does unsmoothed, as of a class
    if soft and label_smoothing > 0:
        y = torch.where(counted[:, None], (1 - label_smoothing) * y + label_smoothing / num_classes, 0.0)
    loss = row_losses(z, y, counted, name, all_settings, impl)
    if not soft and label_smoothing > 0:
        loss = loss + smoothing_share(z, y, label_smoothing, loss_map(name, all_settings), all_settings)
    row_weight = _row_weight(weighed, counted, weight, loss.dtype)
    return reduce_rows(loss, row_weight, logits.shape[:-1], reduction, num_items)


def _alpha_per_row(alpha: Tensor, logits: Tensor) -> Tensor:
    """A tensor alpha broadcast over the N rows of the logits: (N, 1)."""
    rows = (*logits.shape[:-1], 1)
    try:
        return alpha.broadcast_to(rows).reshape(-1, 1)
    except RuntimeError as error:
        raise ValueError(
            f"alpha must broadcast over the rows of the logits, to {rows}; was {tuple(alpha.shape)}"
        ) from error


def _row_weight(y: Tensor, counted: Tensor, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``<weight, y>`` of each row that counts, 0 of the others: (N,); without a weight bool, the rows that count."""
    if weight is None:
        return counted
    weight = weight.to(dtype)
    # Not a matrix product, which autocast would round.
    return counted * ((y.to(dtype) * weight).sum(-1) if y.is_floating_point() else weight[y])
