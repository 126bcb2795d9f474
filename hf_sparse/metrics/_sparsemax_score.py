"""The proper score that belongs to sparsemax, defined for every distribution."""

from __future__ import annotations

from torch import Tensor

from ._gold import average, gold_probability


def sparsemax_score(p: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """``1 - ||p - e_x||^2 / 2``, which equals ``p_x + (1 - ||p||^2) / 2``; bounded even where ``p_x = 0``.

    Args:
        p: probabilities (..., V).
        target: observed classes x (...), int64.
        ignore_index: targets with this value do not count.
        reduction: ``"mean"`` over the targets that count, or ``"none"`` (0 where a target does not count).

    Returns:
        A scalar, or (...): in [0, 1], 1 for all weight on x, no unit. The mean is NaN when no target counts.

    Raises:
        ValueError: shapes that do not fit, or an unknown reduction.
        TypeError: targets that are not integers, or weights that are not floating-point.
        IndexError: a target outside [0, V).

    Source: Martins et al. 2020, Sparse Text Generation, Section 4 (metrics).
    Cost: one pass.

    >>> import torch
    >>> sparsemax_score(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([0]))
    tensor(0.7500)
    """
    gold, counted = gold_probability(p, target, ignore_index)
    norm = p.to(gold.dtype).square().sum(-1)
    return average(gold + (1 - norm) / 2, counted, reduction)
