"""Perplexity of distributions that may give the observed class no probability at all."""

from __future__ import annotations

from torch import Tensor

from ._gold import average, gold_probability


def eps_perplexity(p: Tensor, target: Tensor, eps: float, ignore_index: int = -100) -> Tensor:
    """``exp(-mean log((p_x + eps) / (1 + eps V)))``: perplexity after mixing in a little of the uniform distribution.

    Args:
        p: probabilities (..., V).
        target: observed classes x (...), int64.
        eps: above 0, in units of probability; at 0 one missed class would make it infinite. Report it with the
            number: perplexities at different ``eps`` do not compare.
        ignore_index: targets with this value do not count.

    Returns:
        A scalar, float32 (float64 for float64 ``p``): classes per token, between about 1 and ``(1 + eps V) / eps``.
        NaN when no target counts.

    Raises:
        ValueError: ``eps <= 0``, or shapes that do not fit.
        TypeError: targets that are not integers, or weights that are not floating-point.
        IndexError: a target outside [0, V).

    Source: Martins et al. 2020, Sparse Text Generation, Section 4 (metrics).
    Cost: one gather.

    >>> import torch
    >>> eps_perplexity(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([2]), eps=0.01)
    tensor(103.0000)
    """
    if not eps > 0:
        raise ValueError(f"eps must be > 0, was {eps}")
    gold, counted = gold_probability(p, target, ignore_index)
    return (-average(((gold + eps) / (1 + eps * p.shape[-1])).log(), counted, "mean")).exp()
