"""The entmax losses of a linear layer's output, without the output."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...functional import entmax
from ...functional.candidates import CANDIDATES_FROM
from ...functional.rows import accumulation_dtype, upcast
from ...kernels import chosen
from .._dispatch import checked_settings, row_losses
from .._entmax_support import support_rows
from ._function import linear_loss
from ._head import LinearHead
from ._rows import FULL_SPEED, TILE, LinearLoss, Tile, TiledLoss, worth_listing
from ._support import SupportEntries


def linear_entmax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    alpha: float = 1.5,
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
) -> Tensor:
    """``entmax_loss(z, y, alpha)`` of ``z = softcap(scale (h W^T + b))``, z never held for more than a few rows.

    Value and gradients are those of the two steps done one after the other; second derivatives are not available.

    Args:
        hidden: h (..., D), any floating-point dtype.
        weight: W (V, D), one row a class.
        target: class indices (...), int64.
        alpha: at least 1; from 1 exclusive to 2 the backward touches the support only.
        bias: b (V,).
        ignore_index: targets with this value add nothing to loss or gradients; their rows are not even multiplied.
        reduction: ``"mean"`` over the targets that count, ``"sum"``, or ``"none"``.
        label_smoothing: ``eps`` in [0, 1], as in ``fenchel_young_loss``; not together with ``softcap``.
        num_items: divide the sum by this count instead; only with ``reduction="mean"``.
        softcap: the bound c of ``c tanh(z / c)``, above 0.
        scale: factor on the logits, finite.
        chunk_size: rows whose logits are held at a time; by default as many as make about sixteen million logits, and
            for large V up to 256 while their logits take at most a quarter of the memory of W.
        impl: what finds the supports, ``"auto"``, ``"torch"``, ``"cpp"`` or ``"triton"``, as in
            ``hf_sparse.functional.entmax``. Triton's gradients are summed in the same order every time.

    Returns:
        A scalar, or (...) for ``reduction="none"``; float32, or float64 for float64 inputs. Half-precision inputs
        give half-precision logits, as a linear layer would; everything after them is added up in float32.

    Raises:
        ValueError: shapes that do not fit, or an argument out of range.
        TypeError: targets that are not integers, or an ``alpha`` that is not a number.
        IndexError: a target outside [0, V).
        RuntimeError: a second derivative is asked for.

    Source: Peters et al. 2019, Eq. 9 and 10, and the sparsity of its gradient ``p - e_y``.
    Cost: the forward's matrix product and one read of each logit; the backward gathers M rows of W and of h, M the
    nonzero weights. A chunk in which more than one weight in 128 is nonzero is computed again and multiplied densely.
    Memory beyond the gradients: chunk_size x V logits and O(M).

    >>> import torch
    >>> hidden, weight = torch.eye(2), torch.tensor([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    >>> linear_entmax_loss(hidden, weight, torch.tensor([0, 1]))
    tensor(0.)
    """
    alpha = checked_settings("entmax", {"alpha": alpha})["alpha"]
    rows = LinearLoss(partial(_forward, alpha=alpha), partial(_slopes, alpha=alpha))
    return linear_loss(
        hidden, weight, target, bias, rows, "entmax", {"alpha": alpha}, ignore_index=ignore_index,
        reduction=reduction, label_smoothing=label_smoothing, num_items=num_items, softcap=softcap, scale=scale,
        chunk_size=chunk_size, impl=impl,
    )  # fmt: skip


def linear_sparsemax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """``linear_entmax_loss`` at alpha = 2; arguments, options, result and errors as there.

    >>> import torch
    >>> linear_sparsemax_loss(torch.zeros(1, 2), torch.ones(4, 2), torch.tensor([2]))
    tensor(0.3750)
    """
    return linear_entmax_loss(hidden, weight, target, 2.0, bias, **options)


def _slopes(z: Tensor, grad: Tensor, impl: str, alpha: float) -> Tensor:
    return entmax(upcast(z), alpha, impl=impl) * grad[:, None]


def _forward(
    hidden: Tensor, y: Tensor, head: LinearHead, impl: str, chunk_size: int | None, alpha: float
) -> TiledLoss:
    """Chunks of rows, every class at once: an entmax threshold needs the whole row."""
    num_classes = len(head.weight)
    # Few rows multiply slowly. Up to a quarter of D of them, their logits take less than the gradient of W will.
    chunk_size = chunk_size or max(TILE // num_classes, min(FULL_SPEED, hidden.shape[1] // 4), 1)
    chunk_size = min(chunk_size, len(hidden))
    buffer = hidden.new_empty(chunk_size * num_classes)
    losses, golds, support, dense = [], [], [], []
    listed = num_classes >= CANDIDATES_FROM and 1 < alpha <= 2
    # What it takes to solve a row grows with V as the logits do: only as many rows at a time as make one tile.
    num_solved = max(TILE // num_classes, 1)
    for start in range(0, len(hidden), chunk_size):
        chunk = head.logits(hidden[start : start + chunk_size], slice(0, num_classes), buffer)
        for begin, z in zip(range(start, start + len(chunk), num_solved), chunk.split(num_solved)):
            tile = Tile(slice(begin, begin + len(z)), slice(0, num_classes))
            gold = z.gather(1, y[tile.rows, None])[:, 0]
            golds.append(gold.to(accumulation_dtype(z)))
            solved = support_rows(z, alpha, chosen(impl, z, alpha)) if listed else None
            if solved is None or bool(solved.crowded.any()):
                counted = torch.ones_like(gold, dtype=torch.bool)
                losses.append(row_losses(z, y[tile.rows], counted, "entmax", {"alpha": alpha}, impl))
                dense.append(tile)
                continue
            p, top = solved.p, solved.top.masked_fill(solved.top == -torch.inf, 0.0)[:, 0]
            losses.append((solved.conjugate - (gold.to(p.dtype) - top)).to(golds[-1].dtype))
            row, place = (p != 0).nonzero(as_tuple=True)
            if not worth_listing(len(row), z):
                dense.append(tile)
                continue
            column = solved.columns[row, place]
            value = head.chain(p[row, place], z[row, column])
            support.append(SupportEntries(row + begin, column, value.to(golds[-1].dtype)))
    return TiledLoss(torch.cat(losses), torch.cat(golds), support, dense)
