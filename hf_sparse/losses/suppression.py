"""The price of softmax mass on classes that a sparse map rules out: for training sparse and decoding dense."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.arguments import check_tensor
from ..functional.rows import upcast
from ._targets import check_logits, check_options, class_targets, reduce_rows


def suppression_loss(
    logits: Tensor,
    target: Tensor,
    p: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: int | Tensor | None = None,
) -> Tensor:
    """``-log(1 - m)`` in nats, where m is the softmax mass of classes outside the support of p, the target aside.

    A sparse loss has no gradient at classes of probability zero, so that softmax of the same scores keeps mass there.
    This term takes it away. With K for the support and the target it is ``logsumexp(z) - logsumexp(z_K)``, and its
    gradient the softmax over all classes less that over K; the support itself counts as constant.

    Args:
        logits: raw scores z (..., V), any floating-point dtype.
        target: class indices (...), int64.
        p: the sparse distribution (..., V) of the same rows, of which only the support is read.
        ignore_index: targets with this value add nothing to loss or gradient.
        reduction: ``"mean"`` over the targets that count, ``"sum"``, or ``"none"``.
        num_items: divide the sum by this count instead; only with ``reduction="mean"``.

    Returns:
        A scalar, or (...) for ``reduction="none"``; float32, or float64 for float64 logits.

    Raises:
        ValueError: shapes that do not fit, or an unknown reduction.
        TypeError: logits that are not floating-point, or targets that are not integers.
        IndexError: a target outside [0, V).

    Source: the suppression term of Sparsemax+ (Xu et al., TS^2, ICLR 2026), whose code cuts m at 0.99; there it has no
    gradient, here it has.

    >>> z = torch.tensor([[1.0, 0.5, -1.0]])  # sparsemax: (0.75, 0.25, 0)
    >>> suppression_loss(z, torch.tensor([0]), torch.tensor([[0.75, 0.25, 0.0]]))  # -log(1 - softmax(z)[2])
    tensor(0.0809)
    """
    check_options(reduction, num_items)
    check_logits(logits)
    check_tensor("target", target)
    check_tensor("p", p)
    if p.shape != logits.shape:
        raise ValueError(f"logits and p must both be (..., V), were {tuple(logits.shape)} and {tuple(p.shape)}")
    y, counted = class_targets(logits, target, ignore_index)
    z = upcast(logits).reshape(-1, logits.shape[-1])
    kept = p.detach().reshape(z.shape).scatter(-1, y[:, None], 1.0) > 0  # not on booleans, which no trace takes
    loss = z.logsumexp(-1) - z.masked_fill(~kept, -torch.inf).logsumexp(-1)
    return reduce_rows(loss, counted, target.shape, reduction, num_items)
