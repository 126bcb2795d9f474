"""The mean threshold of entmax over drawn rows, of which only the largest entries are drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional import entmax_threshold

ROWS = 2000


def largest_normals(count: int, of: int, generator: torch.Generator) -> Tensor:
    """The ``count`` largest of ``of`` standard normal numbers, in descending order, without drawing the others.

    Returns:
        ``ROWS`` independent rows (ROWS, count), float64.

    Source: Renyi's representation. The k-th smallest of n uniforms is ``1 - exp(-sum_{j <= k} E_j / (n - j + 1))``
    with independent standard exponentials ``E_j``.
    """
    draws = torch.empty(ROWS, count, dtype=torch.float64).exponential_(generator=generator)
    uniforms = -torch.expm1(-(draws / torch.arange(of, of - count, -1, dtype=torch.float64)).cumsum(-1))
    return -torch.special.ndtri(uniforms)


def mean_threshold(alpha: float, vocab_size: int, std: float) -> float:
    """The mean threshold of entmax over rows of ``vocab_size`` normal logits of mean 0, in units of ``(alpha - 1) z``.

    Same arguments, same result: the draw is seeded. Its standard error is that of a mean of 2,000 rows.
    """
    count = min(vocab_size, 64)
    while True:
        z = std * largest_normals(count, vocab_size, torch.Generator().manual_seed(0))
        tau = entmax_threshold(z, alpha)[:, 0]
        # A threshold found on some entries is that of all if it excludes those that were left out.
        if count == vocab_size or bool(((alpha - 1) * z[:, -1] <= tau).all()):
            return float(tau.mean())
        count = min(vocab_size, 4 * count)
