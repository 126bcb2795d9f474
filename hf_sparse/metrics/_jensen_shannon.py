"""Jensen-Shannon divergence between a distribution and what was observed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.rows import accumulation_dtype
from ._gold import average, gold_probability


def jensen_shannon(p: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
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
        ValueError: shapes that do not fit, or an unknown reduction.
        TypeError: boolean targets, or weights that are not floating-point.
        IndexError: a target outside [0, V).

    Source: Martins et al. 2020, Sparse Text Generation, Section 4 (metrics).
    Cost: one gather for class targets, three passes for distributions.

    >>> import torch
    >>> jensen_shannon(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))  # log 2
    tensor(0.6931)
    """
    if target.is_floating_point():
        if p.shape != target.shape:
            raise ValueError(
                f"two distributions (..., V) must agree in shape, were {tuple(p.shape)} and {tuple(target.shape)}"
            )
        dtype = accumulation_dtype(p, target)
        p, q = p.to(dtype), target.to(dtype)
        m = (p + q) / 2
        divergence = (torch.xlogy(p, p) + torch.xlogy(q, q)).sum(-1) / 2 - torch.xlogy(m, m).sum(-1)
        return average(divergence, torch.ones_like(divergence, dtype=torch.bool), reduction)
    gold, counted = gold_probability(p, target, ignore_index)
    two = torch.tensor(2.0, dtype=gold.dtype, device=gold.device)
    mixed = (torch.xlogy(1 + gold, 1 + gold) - torch.xlogy(gold, gold)) / 2
    return average(two.log() - mixed, counted, reduction)
