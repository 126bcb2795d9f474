"""Prediction sets of a head's logits: supports of entmax, APS and RAPS, calibrated alike; and nucleus sampling.

Sources: Campos et al. 2025 (entmax); Romano et al. 2020 (APS); Angelopoulos et al. 2021 (RAPS).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hf_sparse.metrics import eps_perplexity

UNIFORM = 1e-4  # share of the uniform distribution in the loss


def quantile(scores: Tensor, coverage: float) -> float:
    """The ``ceil((n + 1) coverage)``-th smallest score, infinite where there are too few."""
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return float(scores.kthvalue(rank).values) if rank <= len(scores) else math.inf


def entry_temperature(logits: Tensor, target: Tensor, alpha: float) -> Tensor:
    """The temperatures (N,) above which the observed classes are in the support: ``(alpha - 1) ||(z - z_y)_+||``.

    The norm is of order ``1 / (alpha - 1)``.
    """
    rows = [
        torch.linalg.vector_norm((z - z.gather(-1, y[:, None])).clamp(min=0).double(), 1 / (alpha - 1), dim=-1)
        for z, y in zip(logits.split(64), target.split(64))
    ]
    return (alpha - 1) * torch.cat(rows)


def loss(p: Tensor, target: Tensor) -> float:
    """``-log((1 - u) p_x + u / V)`` in nats a target."""
    return float(eps_perplexity(p, target, UNIFORM / ((1 - UNIFORM) * p.shape[-1])).log())


def impossible(p: Tensor, target: Tensor) -> float:
    """Share of targets of probability zero."""
    return float((p.gather(-1, target[:, None]) == 0).double().mean())


def nucleus(logits: Tensor, classes: float) -> tuple[Tensor, float]:
    """Nucleus sampling with a mean number of classes: distributions (N, V), and the share of mass it keeps."""
    p, order = logits.softmax(-1).sort(descending=True)
    before = p.cumsum(-1) - p
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if float((before < middle).sum(-1).float().mean()) <= classes else (low, middle)
    kept = torch.where(before < low, p, 0.0)
    return torch.zeros_like(p).scatter(-1, order, kept / kept.sum(-1, keepdim=True)), low


class Cumulative:
    """Scores of APS and RAPS for every class of some logits, sorted by probability.

    The score of the k-th likeliest class is ``p_1 + ... + p_(k-1) + u p_k``, u uniform in (0, 1) for each row, and in
    RAPS ``penalty max(0, k - free)`` more. A set holds the classes whose score is at most a quantile.

    Args:
        logits: raw scores (N, V).
        target: observed classes (N,).
        seed: of u.
    """

    def __init__(self, logits: Tensor, target: Tensor, seed: int) -> None:
        p, order = logits.softmax(-1).sort(descending=True)
        u = torch.rand(len(p), 1, generator=torch.Generator().manual_seed(seed))
        self.scores = p.cumsum(-1) - (1 - u) * p
        self.rank = (order == target[:, None]).int().argmax(-1)

    def penalized(self, penalty: float, free: int = 1) -> Tensor:
        """Scores (N, V); without a penalty those of APS."""
        ranks = torch.arange(1, self.scores.shape[1] + 1)
        return self.scores + penalty * (ranks - free).clamp(min=0)

    def sizes(self, scores: Tensor, limit: float) -> Tensor:
        """Number of classes of each row whose score is at most ``limit``: scores rise with the rank."""
        return torch.searchsorted(scores, torch.full((len(scores), 1), limit), right=True)[:, 0].double()

    def of_targets(self, scores: Tensor) -> Tensor:
        """Scores of the observed classes (N,)."""
        return scores.gather(-1, self.rank[:, None])[:, 0]
