"""Metrics of distributions over classes and of the scores behind them: sparsity, size, distance from the data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..functional.arguments import check_number, check_tensor, class_indices
from ..functional.rows import accumulation_dtype, is_readable, upcast

_AVERAGES = ("mean", "none")


def support_size(p: Tensor, dim: int = -1) -> Tensor:
    """``|{i : p_i != 0}|``, the number of classes with nonzero weight.

    Args:
        p: weights (..., V), any dtype.
        dim: the axis of the classes.

    Returns:
        Counts (...), int64, in classes.

    Raises:
        TypeError: no tensor.
        ValueError: a negative weight: logits, perhaps.

    Source: Peters et al. 2019, Table 3 (number of nonzeros).
    Cost: one pass.

    >>> import torch
    >>> support_size(torch.tensor([[0.7, 0.3, 0.0], [1.0, 0.0, 0.0]]))
    tensor([2, 1])
    """
    check_tensor("p", p)
    _check_signs(p)
    return (p != 0).sum(dim)


def self_normalization_sum(p: Tensor, dim: int = -1) -> Tensor:
    """``sum_i p_i``: 1 for a distribution; training drives the sum of ``alpha_relu`` weights towards it.

    Args:
        p: non-negative weights (..., V).
        dim: the axis of the classes.

    Returns:
        Sums (...), float32 (float64 for float64 ``p``), in units of probability.

    Raises:
        TypeError: no tensor, or weights that are not floating-point.

    Source: Tezekbayev et al. 2022, Section 4.5 (self-normalization).
    Cost: one pass.

    >>> import torch
    >>> self_normalization_sum(torch.tensor([[0.75, 0.5, 0.0]]))
    tensor([1.2500])
    """
    check_tensor("p", p)
    if not p.is_floating_point():
        raise TypeError(f"weights must be floating-point, were {p.dtype}")
    return p.sum(dim, dtype=accumulation_dtype(p))


def logit_norm(logits: Tensor, dim: int = -1, centered: bool = False) -> Tensor:
    """``||z||_2``, or ``||z - mean z||_2``, which like softmax and entmax ignores a constant added to z.

    Args:
        logits: scores z (..., V), unmasked.
        dim: the axis of the classes.
        centered: subtract the mean over ``dim`` first.

    Returns:
        Norms (...), float32 (float64 for float64 scores), in units of the scores. Divided by ``sqrt(V)`` the centered
        norm is the standard deviation that ``tau`` of alpha-ReLU is estimated from.

    Raises:
        TypeError: no tensor, or scores that are not floating-point.

    Source: Tezekbayev et al. 2022, Section 4.4 (tau from the spread of the logits).
    Cost: one pass, two when centered.

    >>> import torch
    >>> logit_norm(torch.tensor([[3.0, 4.0]])), logit_norm(torch.tensor([[3.0, 5.0]]), centered=True)
    (tensor([5.]), tensor([1.4142]))
    """
    check_tensor("logits", logits)
    if not logits.is_floating_point():
        raise TypeError(f"scores must be floating-point, were {logits.dtype}")
    z = upcast(logits)
    if centered:
        z = z - z.mean(dim, keepdim=True)
    return torch.linalg.vector_norm(z, dim=dim)


def eps_perplexity(
    p: Tensor,
    target: Tensor,
    eps: float | None = None,
    *,
    uniform_share: float | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """``exp(-mean log((p_x + eps) / (1 + eps V)))``: perplexity after smoothing with the uniform distribution.

    It is that of ``(1 - u) p + u / V`` for the share u of the uniform distribution with ``eps = u / ((1 - u) V)``.
    Give one of the two.

    Args:
        p: probabilities (..., V).
        target: observed classes x (...), int64.
        eps: above 0, in units of probability; at 0 a single observed class of probability 0 makes it infinite. Report
            it with the result: perplexities at different ``eps`` do not compare.
        uniform_share: u, in (0, 1), as in ``compare``, ``calibrate`` and ``score_sequences``.
        ignore_index: targets with this value do not count.

    Returns:
        A scalar, float32 (float64 for float64 ``p``): classes per token, between ``(1 + eps V) / (1 + eps)`` and
        ``(1 + eps V) / eps``.
        NaN when no target counts.

    Raises:
        ValueError: ``eps <= 0`` or infinite, ``uniform_share`` out of range, neither or both of them, shapes that do
            not fit, or a negative probability: logits, perhaps.
        TypeError: no tensors, an ``eps`` or ``uniform_share`` that is no number, targets that are not integers, or
            weights that are not floating-point.
        IndexError: a target outside [0, V).

    Source: Martins et al. 2020, Sparse Text Generation, Section 4 (metrics).
    Cost: one gather.

    >>> import torch
    >>> eps_perplexity(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([2]), eps=0.01)
    tensor(103.0000)
    """
    if (eps is None) == (uniform_share is None):
        raise ValueError(f"give eps or uniform_share, one of the two; they were {eps} and {uniform_share}")
    if eps is not None:
        check_number("eps", eps, "> 0 and finite", lambda number: 0 < number < math.inf)
    if uniform_share is not None:
        check_number("uniform_share", uniform_share, "in (0, 1)", lambda share: 0 < share < 1)
    gold, counted = _gold_probability(p, target, ignore_index)
    if uniform_share is not None:
        eps = uniform_share / ((1 - uniform_share) * p.shape[-1])
    assert eps is not None
    return (-_average(((gold + eps) / (1 + eps * p.shape[-1])).log(), counted, "mean")).exp()


def sparsemax_score(p: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """``1 - ||p - e_x||^2 / 2``, which equals ``p_x + (1 - ||p||^2) / 2``; bounded even where ``p_x = 0``.

    Args:
        p: probabilities (..., V).
        target: observed classes x (...), int64.
        ignore_index: targets with this value do not count.
        reduction: ``"mean"`` over the targets that count, or ``"none"`` (0 where a target does not count).

    Returns:
        A scalar, or (...): in [0, 1], 1 for all weight on x, no unit. The mean is NaN when no target counts.

    Raises:
        ValueError: shapes that do not fit, an unknown reduction, or a negative probability: logits, perhaps.
        TypeError: no tensors, targets that are not integers, or weights that are not floating-point.
        IndexError: a target outside [0, V).

    Source: Martins et al. 2020, Sparse Text Generation, Section 4 (metrics).
    Cost: one pass.

    >>> import torch
    >>> sparsemax_score(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([0]))
    tensor(0.7500)
    """
    gold, counted = _gold_probability(p, target, ignore_index)
    norm = p.to(gold.dtype).square().sum(-1)
    return _average(gold + (1 - norm) / 2, counted, reduction)


def jensen_shannon(p: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """``JS(p, q) = (KL(p || m) + KL(q || m)) / 2``, ``m = (p + q) / 2``, in nats; finite for disjoint supports.

    Against an observed class, q one-hot, it is ``log 2 - ((1 + p_x) log(1 + p_x) - p_x log p_x) / 2``.

    Args:
        p: probabilities (..., V).
        target: observed classes (...), int64, or distributions q (..., V), floating-point.
        ignore_index: class targets with this value do not count.
        reduction: ``"mean"`` over the targets that count, or ``"none"`` (0 where a target does not count).

    Returns:
        A scalar, or (...): in [0, log 2] nats. The mean is NaN when no target counts.

    Raises:
        ValueError: shapes that do not fit, an unknown reduction, or a negative probability: logits, perhaps.
        TypeError: no tensors, boolean targets, or weights that are not floating-point.
        IndexError: a target outside [0, V).

    Source: Martins et al. 2020, Sparse Text Generation, Section 4 (metrics).
    Cost: one gather for class targets, three passes for distributions.

    >>> import torch
    >>> jensen_shannon(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))  # log 2
    tensor(0.6931)
    """
    check_tensor("p", p)
    check_tensor("target", target)
    if target.is_floating_point():
        _check_signs(p)
        _check_signs(target)
        if p.shape != target.shape:
            raise ValueError(
                f"two distributions (..., V) must agree in shape, were {tuple(p.shape)} and {tuple(target.shape)}"
            )
        dtype = accumulation_dtype(p, target)
        p, q = p.to(dtype), target.to(dtype)
        m = (p + q) / 2
        divergence = (torch.xlogy(p, p) + torch.xlogy(q, q)).sum(-1) / 2 - torch.xlogy(m, m).sum(-1)
        divergence = divergence.clamp(0.0, math.log(2))  # rounding may leave the range, and the distance is a root
        return _average(divergence, torch.ones_like(divergence, dtype=torch.bool), reduction)
    gold, counted = _gold_probability(p, target, ignore_index)
    two = torch.tensor(2.0, dtype=gold.dtype, device=gold.device)
    mixed = (torch.xlogy(1 + gold, 1 + gold) - torch.xlogy(gold, gold)) / 2
    return _average(two.log() - mixed, counted, reduction)


def _gold_probability(p: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """The probability of the observed class.

    Returns:
        ``p_x`` (...), float32 or float64, 0 where ignored, and a mask (...), bool, of the positions that count.

    Raises:
        TypeError: no tensors, targets that are not integers, or weights that are not floating-point.
        ValueError: shapes that do not fit, or a negative probability.
        IndexError: a target outside [0, V).
    """
    check_tensor("p", p)
    check_tensor("target", target)
    if not p.is_floating_point():
        raise TypeError(f"probabilities must be floating-point, were {p.dtype}")
    if p.dim() == 0 or p.shape[:-1] != target.shape:
        raise ValueError(
            f"probabilities (..., V) and target (...) must agree, were {tuple(p.shape)} and {tuple(target.shape)}"
        )
    _check_signs(p)
    y, counted = class_indices(target, p.shape[-1], ignore_index)
    gold = upcast(p.gather(-1, y[..., None])[..., 0])
    return torch.where(counted, gold, 0.0), counted


def _check_signs(p: Tensor) -> None:
    """Refuse negative weights, where they can be read without waiting for a device.

    Raises:
        ValueError: some weight is below 0.
    """
    if is_readable(p) and bool((p < 0).any()):
        raise ValueError(
            f"probabilities must be at least 0, were from {float(p.min()):g}; for logits take probabilities(model, "
            "logits), for log-probabilities their exp()"
        )


def _average(values: Tensor, counted: Tensor, reduction: str) -> Tensor:
    """The mean over the positions that count (NaN when none does), or the values, 0 at the others."""
    if reduction not in _AVERAGES:
        raise ValueError(f"reduction must be one of {', '.join(map(repr, _AVERAGES))}, was {reduction!r}")
    values = torch.where(counted, values, 0.0)
    return values if reduction == "none" else values.sum() / counted.sum()
