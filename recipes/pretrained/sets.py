"""Distributions over some of the classes: nucleus and epsilon sampling, and the loss by which any is measured."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hf_sparse.metrics import eps_perplexity

UNIFORM = 1e-4  # share of the uniform distribution in the loss


def loss(p: Tensor, target: Tensor) -> float:
    """``-log((1 - u) p_x + u / V)`` in nats a target."""
    return float(eps_perplexity(p, target, uniform_share=UNIFORM).log())


def impossible(p: Tensor, target: Tensor) -> float:
    """Share of targets of probability zero."""
    return float((p.gather(-1, target[:, None]) == 0).double().mean())


def mean_support(p: Tensor) -> float:
    """The mean number of classes of nonzero probability."""
    return float((p > 0).sum(-1).double().mean())


class Nucleus:
    """Nucleus sampling with a given mean number of classes.

    Args:
        logits: raw scores (N, V).
    """

    def __init__(self, logits: Tensor) -> None:
        self.p, self.order = logits.softmax(-1).sort(descending=True)
        self.before = self.p.cumsum(-1) - self.p

    def __call__(self, classes: float) -> tuple[Tensor, float]:
        """Distributions (N, V) with at most ``classes`` classes on average, and the share of mass they keep."""
        low, high = 0.0, 1.0
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if float(at_most(self.before, middle).mean()) <= classes else (low, middle)
        kept = torch.where(self.before <= low, self.p, 0.0)
        return torch.zeros_like(self.p).scatter(-1, self.order, kept / kept.sum(-1, keepdim=True)), low


class Cut:
    """Classes of at least a given probability, the threshold chosen for a mean number of classes.

    Source: epsilon sampling (Hewitt, Manning and Liang 2022).

    Args:
        logits: raw scores (N, V).
    """

    BINS = 1 << 14

    def __init__(self, logits: Tensor) -> None:
        self.log_p = logits.log_softmax(-1)
        self.lowest = float(self.log_p.min())
        counts = torch.histc(self.log_p, self.BINS, self.lowest, 0)
        self.above = counts.flip(0).cumsum(0).flip(0) / len(logits)  # mean number of classes from each bin on

    def __call__(self, classes: float) -> tuple[Tensor, float]:
        """Distributions (N, V) with at most ``classes`` classes on average, and the smallest probability of one.

        Rows without a class of that probability are left without any, and lose every target.
        """
        bin = int((self.above > classes).sum())
        least = self.lowest * (1 - bin / self.BINS)
        kept = torch.where(self.log_p >= least, self.log_p.exp(), 0.0)
        return kept / kept.sum(-1, keepdim=True).clamp(min=torch.finfo(kept.dtype).tiny), math.exp(least)


def at_most(ascending: Tensor, limit: float) -> Tensor:
    """How many entries of each row, in ascending order (N, V), are at most ``limit`` (N,)."""
    return torch.searchsorted(ascending, torch.full((len(ascending), 1), limit), right=True)[:, 0].double()
