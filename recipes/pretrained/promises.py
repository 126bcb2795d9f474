"""Prediction sets of a head's logits that promise a coverage: supports of entmax, APS, RAPS and LAC, calibrated alike.

Every one is ``{y: score of y <= limit}``, and the limit is a quantile of the scores of observed classes. Where one has
several variants, it takes the one with the smallest sets on the half it is calibrated on.

Sources: Campos et al. 2025 (entmax); Romano et al. 2020 (APS); Angelopoulos et al. 2021 (RAPS); Sadinle et al. 2019
(LAC, the smallest sets there are for true probabilities).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hf_sparse

from .sets import at_most


class Variant(NamedTuple):
    """One way to make sets.

    Attributes:
        of_targets: scores of the observed classes (N,).
        sizes: the number of classes of every row (N,) at a limit.
    """

    of_targets: Tensor
    sizes: Callable[[float], Tensor]


def ways_of(z: Tensor, y: Tensor, settings: Any) -> dict[str, list[Variant]]:
    """The variants of each way, for logits (N, V) and observed classes (N,)."""
    p, order = z.softmax(-1).sort(descending=True)
    rank = (order == y[:, None]).int().argmax(-1, keepdim=True)
    u = torch.rand(len(p), 1, generator=torch.Generator().manual_seed(settings.seed))
    before = p.cumsum(-1) - (1 - u) * p
    further = torch.arange(z.shape[1])

    def ascending(scores: Tensor) -> Variant:
        return Variant(scores.gather(-1, rank)[:, 0], lambda limit: at_most(scores, limit))

    def entmax(alpha: float) -> Variant:
        entries = entry_temperature(z, y, alpha)
        return Variant(entries, Supports(z, alpha, entries))

    return {
        "entmax": [entmax(alpha) for alpha in settings.alphas],
        "aps": [ascending(before)],
        "raps": [ascending(before + penalty * further) for penalty in settings.penalties],
        "lac": [ascending(-p)],
    }


def coverage(y: Tensor, asked: Sequence[float], ways: Mapping[str, Sequence[Variant]], splits: int) -> dict[str, Any]:
    """Coverage and mean size, averaged over random splits into a half to calibrate on and a half to judge on.

    Returns:
        By the coverage that was asked, then by way: ``coverage`` and ``size``.
    """
    found: dict[str, Any] = {}
    for share in asked:
        found[f"{share:g}"] = {}
        for name, variants in ways.items():
            pairs = [judged(variants, *halves(len(y), split), share) for split in range(splits)]
            held, size = (sum(each) / splits for each in zip(*pairs))
            found[f"{share:g}"][name] = {"coverage": held, "size": size}
        print(share, found[f"{share:g}"], flush=True)
    return found


def halves(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers below ``count``, at random, in two halves."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: count // 2], order[count // 2 :]


def judged(variants: Sequence[Variant], fit: Tensor, test: Tensor, asked: float) -> tuple[float, float]:
    """Coverage and mean size on some rows of the variant with the smallest sets on others."""
    limits = [quantile(each.of_targets[fit], asked) for each in variants]
    sizes = [each.sizes(limit) for each, limit in zip(variants, limits)]
    best = min(range(len(variants)), key=lambda i: float(sizes[i][fit].mean()))
    held = variants[best].of_targets[test] <= limits[best]
    return float(held.double().mean()), float(sizes[best][test].mean())


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


class Supports:
    """The number of classes of every row under entmax, interpolated between temperatures where classes enter.

    Args:
        z: logits (N, V).
        alpha: of entmax.
        entries: temperatures at which observed classes enter.
    """

    def __init__(self, z: Tensor, alpha: float, entries: Tensor) -> None:
        low, high = (float(entries.quantile(share)) for share in (0.6, 0.9995))
        low = max(low, high / 1e4)  # zero where the likeliest class is the observed one as often
        self.temperatures = torch.logspace(math.log10(low), math.log10(high), 16, dtype=torch.float64)
        maps = [{"name": "entmax", "alpha": alpha, "temperature": float(t)} for t in self.temperatures]
        configs = [hf_sparse.SparseConfig.parse(head=each).head for each in maps]
        rows = [[(config(part) > 0).sum(-1) for part in z.split(128)] for config in configs]
        self.counts = torch.stack([torch.cat(parts) for parts in rows]).double()
        self.vocabulary = z.shape[1]

    def __call__(self, temperature: float) -> Tensor:
        """The number of classes (N,); all of them above the highest temperature, where nothing was counted."""
        if temperature > self.temperatures[-1]:
            return torch.full_like(self.counts[0], self.vocabulary)
        t = torch.tensor(temperature, dtype=torch.float64).clamp(min=self.temperatures[0])
        upper = int(torch.searchsorted(self.temperatures, t).clamp(1, len(self.temperatures) - 1))
        low, high = self.temperatures[upper - 1], self.temperatures[upper]
        share = float((t / low).log() / (high / low).log())
        below, above = self.counts[upper - 1].log(), self.counts[upper].log()
        return (below + share * (above - below)).exp()
