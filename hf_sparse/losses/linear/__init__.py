"""Fused losses: a linear layer and the Fenchel-Young loss of its output, without the output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...functional import MAPS
from ...functional.registry import underlying
from ...functional.rows import is_transformed
from .._dispatch import checked_settings, chosen_for
from .._targets import class_targets, reduce_rows, smoothed_one_hot
from ._alpha_relu import alpha_relu_tiles
from ._entmax import entmax_tiles
from ._function import RowLosses, fused_losses, tiled_rows
from ._options import check_layer, check_linear_options
from ._tiles import TiledMap
from ._triton import triton_tiles
from .divided import DividedMap, divided_alpha_relu, divided_entmax, divided_rows, is_divided, local_part

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import LinearOptions


class _FusedMap(NamedTuple):
    """What makes the losses of a map from its settings: by tiles, and by processes that share the classes."""

    tiles: Callable[..., TiledMap]
    divided: Callable[..., DividedMap]


_FUSED_MAPS = {
    "alpha_relu": _FusedMap(alpha_relu_tiles, divided_alpha_relu),
    "entmax": _FusedMap(entmax_tiles, divided_entmax),
}


def fused_maps() -> list[str]:
    """The names of all maps with a fused loss."""
    return sorted(name for name in MAPS if underlying(name, {})[0] in _FUSED_MAPS)


def linear_fenchel_young_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    name: str,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    num_items: int | Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    chunk_size: int | None = None,
    impl: str = "auto",
    **settings: float,
) -> Tensor:
    """``fenchel_young_loss(z, y, name)`` of ``z = softcap(scale (h W^T + b))``, z never held for more than a few rows.

    Value and gradients are those of the two steps done one after the other; second derivatives are not available.

    Args:
        hidden: h (..., D), any floating-point dtype.
        weight: W (V, D), one row per class. Where tensor parallelism has divided the classes over processes (a
            ``DTensor``; ``bias`` alike), which must all be given the same h, it stays divided: exchanged are a few
            numbers a row in the forward pass and the gradient of h in the backward pass. alpha of entmax is then at
            most 2.
        target: class indices (...), int64.
        name: a map with a fused loss: alpha-ReLU, or one of the entmax family, softmax included.
        bias: b (V,).
        ignore_index: targets with this value add nothing to loss or gradients; their logits are not computed.
        reduction: ``"mean"`` over the targets that count, ``"sum"``, or ``"none"``.
        label_smoothing: ``eps`` in [0, 1], as in ``fenchel_young_loss``; not together with ``softcap``.
        num_items: divide the sum by this count instead, as in ``fenchel_young_loss``.
        softcap: the bound c of ``c tanh(z / c)``, from 1e-4 to 1e6.
        scale: factor on the logits, from -1e6 to 1e6.
        chunk_size: rows whose logits are held at a time; by default as many as make about sixteen million logits, and
            for large V up to 256 while their logits take at most a quarter of the memory of W. For alpha-ReLU without
            Triton, classes instead of rows.
        impl: implementation of the supports, ``"auto"``, ``"torch"``, ``"cpp"`` or ``"triton"``, as in
            ``hf_sparse.functional.entmax``. Triton's gradients are summed in the same order every time.
        **settings: the map's settings, as numbers. For entmax with alpha in (1, 2] and for alpha-ReLU the backward
            pass touches the supports only.

    Returns:
        A scalar, or (...) for ``reduction="none"``; float32, or float64 for float64 inputs. Half-precision inputs
        give half-precision logits, as a linear layer would; everything after them is summed in float32.

    Raises:
        ValueError: a map without a fused loss, shapes that do not fit, or an option or setting out of range; a
            weight that is divided otherwise, or rows that differ between its processes.
        TypeError: targets that are not integers, or a setting that is not a number.
        IndexError: a target outside [0, V).
        RuntimeError: a second derivative is asked for, a transform of ``torch.func``, or a trace or export.

    Source: Peters et al. 2019, Eq. 9 and 10, and the sparsity of its gradient ``p - e_y``; for alpha-ReLU Tezekbayev
    et al. 2022, Lemma 1.
    Cost: the matrix product of the forward pass and one read of each logit; the backward pass gathers M rows of W and
    of h, M the nonzero weights. Rows of which more than one weight in 128 is nonzero are computed again and
    multiplied densely. Memory beyond the gradients: chunk_size x V logits and O(M).

    Where products in bfloat16 are several times as fast as in float32 (CPUs with AMX), 384 rows or more of entmax or
    alpha-ReLU with the C++ kernel, a W of four million weights or more in float32, no softcap and small supports take
    one of them instead: it bounds every logit, and those that can have weight are computed from h and W, so that loss
    and gradients are the same to the rounding of a dot product. W in bfloat16 is held besides, in the forward pass.
    alpha-ReLU does so only without a ``chunk_size``.

    >>> import torch
    >>> linear_fenchel_young_loss(torch.zeros(1, 2), torch.ones(4, 2), torch.tensor([2]), "entmax15")
    tensor(0.6667)
    """
    base, base_settings = underlying(name, checked_settings(name, settings))
    if base not in _FUSED_MAPS:
        raise ValueError(
            f"{name!r} has no fused loss; the maps that have one are {', '.join(map(repr, fused_maps()))}"
        )
    if torch.is_tensor(base_settings["alpha"]):
        raise TypeError(
            f"alpha of a fused loss must be a number, was a tensor of shape {tuple(base_settings['alpha'].shape)}; "
            "use entmax_loss of the logits, which gives it a gradient"
        )
    if is_transformed(hidden, weight):
        raise RuntimeError(
            "fused linear losses cannot be transformed by torch.func (grad, vmap, ...); use the loss of the logits: "
            "fenchel_young_loss, or a model without fused_loss=True"
        )
    if torch.jit.is_tracing() or torch.compiler.is_exporting():  # torch.compile breaks its graph instead
        raise RuntimeError(
            "fused linear losses choose their steps by the values of their inputs, which torch.jit.trace and "
            "torch.export do not record: use the loss of the logits, fenchel_young_loss, or a model without "
            "fused_loss=True"
        )
    check_linear_options(reduction, num_items, label_smoothing, softcap, scale, chunk_size)
    check_layer(hidden, weight, bias, target)
    hidden = local_part(hidden)
    dtype = _product_dtype(weight)
    # Only dtype, device and shape of the logits are looked at, and an expanded scalar has them for free.
    logits = hidden.new_empty((), dtype=dtype).expand(*hidden.shape[:-1], len(weight))
    y, counted = class_targets(logits, target, ignore_index)
    loss = fused_losses(
        hidden.reshape(-1, weight.shape[1]).to(dtype),
        local_part(weight).to(dtype),
        None if bias is None else local_part(bias).to(dtype),
        y,
        counted,
        _row_losses(weight, base, base_settings, chosen_for(base, base_settings, logits, impl), chunk_size),
        scale=scale,
        softcap=softcap,
        label_smoothing=label_smoothing,
    )
    if label_smoothing > 0:
        regularizer = partial(MAPS[base].loss_regularizer(), **base_settings)
        one_hot, smoothed = smoothed_one_hot(len(weight), label_smoothing, loss.dtype, loss.device)
        loss = loss + (regularizer(smoothed) - regularizer(one_hot))
    return reduce_rows(loss, counted, target.shape, reduction, num_items)


def _row_losses(weight: Tensor, base: str, settings: dict[str, float], impl: str, chunk_size: int | None) -> RowLosses:
    """The losses of rows by the implementation that was chosen, or by all processes that share the classes."""
    if is_divided(weight):
        return divided_rows(weight, _FUSED_MAPS[base].divided(**settings), chunk_size)
    tiles = triton_tiles(**settings) if impl == "triton" else _FUSED_MAPS[base].tiles(**settings, impl=impl)
    return tiled_rows(tiles, chunk_size)


def _product_dtype(weight: Tensor) -> torch.dtype:
    """The dtype of the product with W: under autocast its own, as in ``torch.nn.functional.linear``."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def linear_entmax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    alpha: float = 1.5,
    bias: Tensor | None = None,
    **options: Unpack[LinearOptions],
) -> Tensor:
    """``entmax_loss(z, y, alpha)`` of ``z = softcap(scale (h W^T + b))``, z never held for more than a few rows.

    Args:
        hidden: h (..., D), any floating-point dtype.
        weight: W (V, D), one row per class.
        target: class indices (...), int64.
        alpha: from 1 to 64; in (1, 2] the backward pass touches the supports only.
        bias: b (V,).
        **options: ``ignore_index``, ``reduction``, ``label_smoothing``, ``num_items``, ``softcap``, ``scale``,
            ``chunk_size`` and ``impl`` as in ``linear_fenchel_young_loss``.

    Returns:
        As ``linear_fenchel_young_loss``; errors and cost too.

    Source: Peters et al. 2019, Eq. 9 and 10.

    >>> import torch
    >>> hidden, weight = torch.eye(2), torch.tensor([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    >>> linear_entmax_loss(hidden, weight, torch.tensor([0, 1]))
    tensor(0.)
    """
    return linear_fenchel_young_loss(hidden, weight, target, "entmax", bias, alpha=alpha, **options)


def linear_sparsemax_loss(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, **options: Unpack[LinearOptions]
) -> Tensor:
    """``linear_entmax_loss`` at alpha = 2; arguments, options, result and errors as there.

    >>> import torch
    >>> linear_sparsemax_loss(torch.zeros(1, 2), torch.ones(4, 2), torch.tensor([2]))
    tensor(0.3750)
    """
    return linear_fenchel_young_loss(hidden, weight, target, "sparsemax", bias, **options)


def linear_alpha_relu_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    alpha: float,
    tau: float,
    bias: Tensor | None = None,
    **options: Unpack[LinearOptions],
) -> Tensor:
    """``alpha_relu_loss(z, y, alpha, tau)`` of ``z = softcap(scale (h W^T + b))``, reading W once per 8192 rows.

    Args:
        hidden: h (..., D), any floating-point dtype.
        weight: W (V, D), one row per class.
        target: class indices (...), int64.
        alpha: from 1.001 to 5.
        tau: the threshold of ``alpha_relu``, finite.
        bias: b (V,).
        **options: as in ``linear_entmax_loss``; ``chunk_size`` counts classes, or rows with Triton.

    Returns:
        As ``linear_fenchel_young_loss``; errors and cost too.

    Source: Tezekbayev et al. 2022, Lemma 1; the separable form in ``alpha_relu_loss``.

    >>> import torch
    >>> hidden, weight = torch.eye(2), torch.tensor([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    >>> linear_alpha_relu_loss(hidden, weight, torch.tensor([0, 1]), alpha=1.5, tau=0.5)
    tensor(0.)
    """
    return linear_fenchel_young_loss(hidden, weight, target, "alpha_relu", bias, alpha=alpha, tau=tau, **options)
