"""Losses that drive a map's weights to the distribution over an example's labels (Laha et al. 2018, Section 4)."""

from __future__ import annotations

from torch import Tensor

from ._fenchel_young import fenchel_young_loss
from ._label_distribution import label_distribution
from ._pairwise_hinge import pairwise_hinge
from ._reduce import check_reduction, reduce_rows


def sparsegen_lin_hinge_loss(logits: Tensor, labels: Tensor, lam: float = 0.0, *, reduction: str = "mean") -> Tensor:
    """Zero iff ``sparsegen_lin(z, lam) = eta``, with ``eta = y / ||y||_1``; piecewise linear and convex in z.

    ``sum_{i<j pos} |(z_i - z_j)/(1 - lam) - (eta_i - eta_j)| + sum_{i pos, j neg} [eta_i - (z_i - z_j)/(1 - lam)]_+``;
    pairs of positives count once (the sum printed in the paper runs over ordered pairs: twice the first term).

    Args:
        logits: raw scores z (..., K), any floating-point dtype.
        labels: multi-hot y (..., K), bool or numbers; any non-negative weights are allowed. A row with no positive
            label has no distribution to aim at: it adds nothing to loss or gradient and does not count in the mean.
        lam: below 1; 0 gives the hinge loss of sparsemax.
        reduction: ``"mean"`` over the rows that count, ``"sum"``, or ``"none"``.

    Returns:
        A scalar, or (...) for ``reduction="none"``; float32, or float64 for float64 logits; in units of probability.

    Raises:
        ValueError: ``lam >= 1``, shapes that differ, a negative or infinite label, an unknown reduction.
        TypeError: logits that are not floating-point.

    Source: Laha et al. 2018, Eq. 7.
    Cost: O(K log K) a row, where the definition takes O(K^2).

    >>> import torch
    >>> sparsegen_lin_hinge_loss(torch.tensor([[1.0, 1.0, 0.25]]), torch.tensor([[1, 1, 0]]), lam=-1.0)
    tensor(0.2500)
    """
    if not lam < 1:
        raise ValueError(f"lam must be < 1, was {lam}")
    check_reduction(reduction)
    eta, counted = label_distribution(logits, labels)
    z = logits.reshape(eta.shape).to(eta.dtype)
    loss = pairwise_hinge(z / (1 - lam) - eta, eta > 0)
    return reduce_rows(loss, counted.to(loss.dtype), logits.shape[:-1], reduction)


def sparsehourglass_hinge_loss(logits: Tensor, labels: Tensor, q: float = 1.0, *, reduction: str = "mean") -> Tensor:
    """Zero iff ``sparsehourglass(z, q) = eta``, with ``eta = y / ||y||_1``.

    ``sum_{i<j pos} |z_i - z_j - (eta_i - eta_j)/a| + sum_{i pos, j neg} [eta_i/a - (z_i - z_j)]_+`` with
    ``a = (1 + K q) / (|sum z| + K q)``, whose gradient is part of the loss's. Convex in z for multi-hot labels.

    Args:
        logits: raw scores z (..., K), any floating-point dtype, finite.
        labels: multi-hot y (..., K), as in ``sparsegen_lin_hinge_loss``; rows with no positive label are ignored.
        q: at least 0; towards infinity it becomes the hinge loss of sparsemax. At 0 the map is undefined where the
            scores sum to zero, and the loss asks for no margin there.
        reduction: ``"mean"`` over the rows that count, ``"sum"``, or ``"none"``.

    Returns:
        A scalar, or (...) for ``reduction="none"``; float32, or float64 for float64 logits; in units of the scores.

    Raises:
        ValueError: ``q`` negative or infinite, shapes that differ, a negative or infinite label, an unknown reduction.
        TypeError: logits that are not floating-point.

    Source: Laha et al. 2018, Eq. 6.
    Cost: O(K log K) a row, where the definition takes O(K^2).

    >>> import torch
    >>> sparsehourglass_hinge_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0, 1]]), q=1.0)
    tensor(2.)
    """
    if not 0 <= q < float("inf"):
        raise ValueError(f"q must be >= 0 and finite, was {q}")
    check_reduction(reduction)
    eta, counted = label_distribution(logits, labels)
    z = logits.reshape(eta.shape).to(eta.dtype)
    num_classes = z.shape[-1]
    inverse_scale = (z.sum(-1, keepdim=True).abs() + num_classes * q) / (1 + num_classes * q)
    loss = pairwise_hinge(z - eta * inverse_scale, eta > 0)
    return reduce_rows(loss, counted.to(loss.dtype), logits.shape[:-1], reduction)


def sparsemax_huber_loss(logits: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """``-eta^T z + sum_S (z_j^2 - tau^2)/2 + ||eta||^2/2``: the sparsemax loss of ``eta = y / ||y||_1``.

    Args:
        logits: raw scores z (..., K), any floating-point dtype.
        labels: multi-hot y (..., K), as in ``sparsegen_lin_hinge_loss``; rows with no positive label are ignored.
        reduction: ``"mean"`` over the rows that count, ``"sum"``, or ``"none"``.

    Returns:
        A scalar, or (...) for ``reduction="none"``; gradient ``sparsemax(z) - eta``, zero iff that is zero.

    Raises:
        ValueError: shapes that differ, a negative or infinite label, an unknown reduction.
        TypeError: logits that are not floating-point.

    Source: Martins and Astudillo 2016, Section 3.3; "sparsemax+huber" in Laha et al. 2018.

    >>> import torch
    >>> sparsemax_huber_loss(torch.tensor([[0.5, 0.5, -0.5]]), torch.tensor([[1, 1, 0]]))
    tensor(0.)
    """
    eta, _ = label_distribution(logits, labels)
    return fenchel_young_loss(logits, eta.reshape(logits.shape), "sparsemax", reduction=reduction)


def softmax_log_loss(logits: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """``KL(eta || softmax(z))`` in nats, ``eta = y / ||y||_1``: the dense baseline of the multilabel losses.

    Args:
        logits: raw scores z (..., K), any floating-point dtype.
        labels: multi-hot y (..., K), as in ``sparsegen_lin_hinge_loss``; rows with no positive label are ignored.
        reduction: ``"mean"`` over the rows that count, ``"sum"``, or ``"none"``.

    Returns:
        A scalar, or (...) for ``reduction="none"``; gradient ``softmax(z) - eta``.

    Raises:
        ValueError: shapes that differ, a negative or infinite label, an unknown reduction.
        TypeError: logits that are not floating-point.

    Source: "softmax+log" in Laha et al. 2018, Section 5.1.

    >>> import torch
    >>> softmax_log_loss(torch.tensor([[0.0, 0.0, 0.0, 0.0]]), torch.tensor([[1, 1, 0, 0]]))  # log 2
    tensor(0.6931)
    """
    eta, _ = label_distribution(logits, labels)
    return fenchel_young_loss(logits, eta.reshape(logits.shape), "softmax", reduction=reduction)
