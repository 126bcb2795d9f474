"""Losses that drive a map's weights to the distribution over an example's labels (Laha et al. 2018, Section 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional import MAPS
from ..functional.arguments import check_tensor
from ..functional.rows import accumulation_dtype, is_readable
from ._fenchel_young import fenchel_young_loss
from ._targets import check_options, reduce_rows


def sparsegen_lin_hinge_loss(logits: Tensor, labels: Tensor, lam: float = 0.0, *, reduction: str = "mean") -> Tensor:
    """Zero iff ``sparsegen_lin(z, lam) = eta``, with ``eta = y / ||y||_1``; piecewise linear and convex in z.

    ``sum_{i<j pos} |(z_i - z_j)/(1 - lam) - (eta_i - eta_j)| + sum_{i pos, j neg} [eta_i - (z_i - z_j)/(1 - lam)]_+``;
    pairs of positives count once (the sum printed in the paper runs over ordered pairs: twice the first term).

    Args:
        logits: raw scores z (..., K), any floating-point dtype.
        labels: multi-hot y (..., K), bool or numbers; any non-negative weights are allowed. A row without a
            positive label is ignored: it adds nothing to loss or gradient and does not count in the mean.
        lam: from -1e9 to 0.999999; 0 gives the hinge loss of sparsemax.
        reduction: ``"mean"`` over the rows that count, ``"sum"``, or ``"none"``.

    Returns:
        A scalar, or (...) for ``reduction="none"``; float32, or float64 for float64 logits; in units of probability.

    Raises:
        ValueError: lam out of range, shapes that differ, a negative or infinite label, an unknown reduction.
        TypeError: no tensors, logits that are not floating-point, or lam that is no number.

    Source: Laha et al. 2018, Eq. 7.
    Cost: O(K log K) per row; the definition takes O(K^2).

    >>> import torch
    >>> sparsegen_lin_hinge_loss(torch.tensor([[1.0, 1.0, 0.25]]), torch.tensor([[1, 1, 0]]), lam=-1.0)
    tensor(0.2500)
    """
    MAPS["sparsegen_lin"].settings["lam"].check("lam", lam)
    check_options(reduction)
    eta, counted = _label_distribution(logits, labels)
    z = logits.reshape(eta.shape).to(eta.dtype)
    loss = _pairwise_hinge(z / (1 - lam) - eta, eta > 0)
    return reduce_rows(loss, counted, logits.shape[:-1], reduction)


def sparsehourglass_hinge_loss(logits: Tensor, labels: Tensor, q: float = 1.0, *, reduction: str = "mean") -> Tensor:
    """Zero iff ``sparsehourglass(z, q) = eta``, with ``eta = y / ||y||_1``.

    ``sum_{i<j pos} |z_i - z_j - (eta_i - eta_j)/a| + sum_{i pos, j neg} [eta_i/a - (z_i - z_j)]_+`` with
    ``a = (1 + K q) / (|sum z| + K q)``, whose gradient is part of the loss's. Convex in z for multi-hot labels.

    Args:
        logits: raw scores z (..., K), any floating-point dtype, finite.
        labels: multi-hot y (..., K), as in ``sparsegen_lin_hinge_loss``; rows without a positive label are ignored.
        q: from 0 to 1e9; towards infinity it becomes the hinge loss of sparsemax. At 0 the map is undefined where the
            scores sum to zero, and the loss has no margin there.
        reduction: ``"mean"`` over the rows that count, ``"sum"``, or ``"none"``.

    Returns:
        A scalar, or (...) for ``reduction="none"``; float32, or float64 for float64 logits; in units of the scores.

    Raises:
        ValueError: q out of range, shapes that differ, a negative or infinite label, an unknown reduction.
        TypeError: no tensors, logits that are not floating-point, or q that is no number.

    Source: Laha et al. 2018, Eq. 6.
    Cost: O(K log K) per row; the definition takes O(K^2).

    >>> import torch
    >>> sparsehourglass_hinge_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0, 1]]), q=1.0)
    tensor(2.)
    """
    MAPS["sparsehourglass"].settings["q"].check("q", q)
    check_options(reduction)
    eta, counted = _label_distribution(logits, labels)
    z = logits.reshape(eta.shape).to(eta.dtype)
    num_classes = z.shape[-1]
    inverse_scale = (z.sum(-1, keepdim=True).abs() + num_classes * q) / (1 + num_classes * q)
    loss = _pairwise_hinge(z - eta * inverse_scale, eta > 0)
    return reduce_rows(loss, counted, logits.shape[:-1], reduction)


def sparsemax_huber_loss(logits: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """``-eta^T z + sum_S (z_j^2 - tau^2)/2 + ||eta||^2/2``: the sparsemax loss of ``eta = y / ||y||_1``.

    Args:
        logits: raw scores z (..., K), any floating-point dtype.
        labels: multi-hot y (..., K), as in ``sparsegen_lin_hinge_loss``; rows without a positive label are ignored.
        reduction: ``"mean"`` over the rows that count, ``"sum"``, or ``"none"``.

    Returns:
        A scalar, or (...) for ``reduction="none"``; gradient ``sparsemax(z) - eta``. Zero iff the gradient is.

    Raises:
        ValueError: shapes that differ, a negative or infinite label, an unknown reduction.
        TypeError: no tensors, or logits that are not floating-point.

    Source: Martins and Astudillo 2016, Section 3.3; "sparsemax+huber" in Laha et al. 2018.

    >>> import torch
    >>> sparsemax_huber_loss(torch.tensor([[0.5, 0.5, -0.5]]), torch.tensor([[1, 1, 0]]))
    tensor(0.)
    """
    eta, _ = _label_distribution(logits, labels)
    return fenchel_young_loss(logits, eta.reshape(logits.shape), "sparsemax", reduction=reduction)


def softmax_log_loss(logits: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """``KL(eta || softmax(z))`` in nats, ``eta = y / ||y||_1``: the dense baseline of the multilabel losses.

    Args:
        logits: raw scores z (..., K), any floating-point dtype.
        labels: multi-hot y (..., K), as in ``sparsegen_lin_hinge_loss``; rows without a positive label are ignored.
        reduction: ``"mean"`` over the rows that count, ``"sum"``, or ``"none"``.

    Returns:
        A scalar, or (...) for ``reduction="none"``; gradient ``softmax(z) - eta``.

    Raises:
        ValueError: shapes that differ, a negative or infinite label, an unknown reduction.
        TypeError: no tensors, or logits that are not floating-point.

    Source: "softmax+log" in Laha et al. 2018, Section 5.1.

    >>> import torch
    >>> softmax_log_loss(torch.tensor([[0.0, 0.0, 0.0, 0.0]]), torch.tensor([[1, 1, 0, 0]]))  # log 2
    tensor(0.6931)
    """
    eta, _ = _label_distribution(logits, labels)
    return fenchel_young_loss(logits, eta.reshape(logits.shape), "softmax", reduction=reduction)


def _label_distribution(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Multi-hot rows as distributions ``eta = y / ||y||_1``, the target of every multilabel loss.

    Returns:
        eta (N, K), float32 or float64, and a mask (N,), bool, of the rows that have a positive label.

    Raises:
        TypeError: no tensors, or logits that are not floating-point.
        ValueError: shapes that differ, no classes, or a label below 0 or not finite.
    """
    check_tensor("logits", logits)
    check_tensor("labels", labels)
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating-point, were {logits.dtype}")
    if logits.shape != labels.shape or logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError(
            f"logits and labels must both be (..., K), K >= 1, were {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    y = labels.reshape(-1, labels.shape[-1]).to(accumulation_dtype(logits))
    if is_readable(y) and not bool(((y >= 0) & (y < torch.inf)).all()):
        raise ValueError(f"labels must be finite and >= 0 (multi-hot), the lowest was {float(y.min())}")
    total = y.sum(-1, keepdim=True)
    return y / torch.where(total == 0, 1.0, total), total[:, 0] > 0


def _pairwise_hinge(t: Tensor, positive: Tensor) -> Tensor:
    """``sum_{i < j positive} |t_i - t_j| + sum_{i positive, j negative} [t_j - t_i]_+`` per row, in O(K log K).

    Both sums are linear in t between ties. The coefficient of entry k is the number of pairs in which it is the larger
    minus the number in which it is the smaller; tied pairs count for nothing, as ``|0|`` and ``[0]_+`` do. Two sorts,
    of the positives and of the negatives, count those pairs.

    Args:
        t: shifted scores (N, K).
        positive: mask (N, K), bool, of the positive labels.

    Returns:
        Sums (N,).
    """
    with torch.no_grad():
        values = t.detach().contiguous()
        high = torch.where(positive, values, torch.inf).sort(-1).values  # the positives, then padding
        low = torch.where(positive, torch.inf, values).sort(-1).values  # the negatives, then padding
        num_positive = positive.sum(-1, keepdim=True)
        positives_below = torch.searchsorted(high, values, right=False)
        positives_above = num_positive - torch.searchsorted(high, values, right=True).minimum(num_positive)
        num_negative = t.shape[-1] - num_positive
        negatives_above = num_negative - torch.searchsorted(low, values, right=True).minimum(num_negative)
        of_positive = positives_below - positives_above - negatives_above
        coefficient = torch.where(positive, of_positive, positives_below).to(t.dtype)
        # The coefficients sum to zero, so t may be shifted by any constant: less its maximum, nothing large cancels.
        top = values.amax(-1, keepdim=True)
        top = torch.where(top.isinf(), 0.0, top)
    return torch.where(coefficient == 0, 0.0, (t - top) * coefficient).sum(-1)
