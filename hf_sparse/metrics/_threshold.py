"""The threshold entmax solves for, row by row: what a fixed-threshold map such as alpha-ReLU has to match."""

from __future__ import annotations

from torch import Tensor

from ..functional import entmax_threshold


def threshold(logits: Tensor, alpha: float = 1.5, dim: int = -1) -> Tensor:
    """``tau`` such that ``sum_i [(alpha - 1) z_i - tau]_+ ^ (1 / (alpha - 1)) = 1``.

    Args:
        logits: scores z (..., V); ``-inf`` masks an entry.
        alpha: above 1; at 1 nothing is cut off and there is no threshold.
        dim: the axis of the classes.

    Returns:
        Thresholds (...), float32 (float64 for float64 scores), in units of ``(alpha - 1) z``. ``inf`` for a fully
        masked row, which nothing exceeds. It moves with the scores: ``tau(z + c) = tau(z) + (alpha - 1) c``.

    Raises:
        ValueError: ``alpha <= 1``.
        TypeError, IndexError: see ``entmax``.

    Source: Peters et al. 2019, Proposition 1 and Algorithm 1.
    Cost: that of ``entmax``.

    >>> import torch
    >>> threshold(torch.zeros(1, 4), alpha=2.0)  # 4 (0 - tau) = 1
    tensor([-0.2500])
    """
    if not alpha > 1:
        raise ValueError(f"alpha must be > 1, was {alpha}")
    return entmax_threshold(logits, alpha, dim).squeeze(dim)
