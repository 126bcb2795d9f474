"""The share of attention's edges that a model keeps, by a count with a gradient: what a trainer can make small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..functional.rows import upcast
from .observer import AttentionObserver
from .site import SITE, AttentionSite, attention_sites, observing, settings_by_head


@dataclass
class SoftEdges(AttentionObserver):
    """Counts the edges of attention calls: pairs of a query and a visible key with nonzero weight.

    Sums stay tensors until they are read, so that nothing waits for a GPU.
    """

    _kept: list[Tensor] = field(default_factory=list)
    _visible: list[Tensor] = field(default_factory=list)
    _soft: list[Tensor] = field(default_factory=list)

    def add(self, module: nn.Module, scores: Tensor, weights: Tensor) -> None:
        """Count the calls of a site: its scores, masked ones at ``-inf``, and its weights (..., keys)."""
        visible, power = (scores != -torch.inf).sum(-1, keepdim=True), _power(module, scores)
        self._kept.append((weights > 0).sum())
        self._visible.append(visible.sum())
        if weights.device.type == "cpu":  # elsewhere the search for the edges would wait for all that was computed
            weights, visible, power = _edges(weights, visible, power)
        self._soft.append(soft_count(weights, visible, power).sum())

    @property
    def kept(self) -> float:
        """Number of edges."""
        return float(_total(self._kept))

    @property
    def visible(self) -> float:
        """Number of pairs that no mask excludes."""
        return float(_total(self._visible))

    @property
    def soft_share(self) -> Tensor:
        """The same by ``soft_count``: a scalar with a gradient.

        Raises:
            ValueError: no call was counted.
        """
        if not self._soft:
            raise ValueError("no attention call was counted: a forward pass inside soft_edges(model) counts them")
        return _total(self._soft) / _total(self._visible)


def _total(counts: list[Tensor]) -> Tensor:
    """Sum of scalars that may be on several devices."""
    if not counts:
        return torch.zeros((), dtype=torch.float32, device="cpu")
    return torch.stack([each.to(counts[0].device) for each in counts]).sum()


def soft_count(weights: Tensor, visible: Tensor, power: Tensor | float) -> Tensor:
    """``u / (1 + u)`` with ``u = (n p) ** power``, for weights p of rows with n visible keys; 0 where p is 0.

    With power ``alpha - 1``, u is the distance of an entmax score from the threshold, in units of that at which the
    weight would be 1 / n: a key at the threshold counts 0 and is pushed out with the strongest gradient, one at 1 / n
    counts a half, and keys with most of the weight count one each and are left alone.

    Args:
        weights: (..., keys), floating point.
        visible: (..., 1), number of visible keys.
        power: broadcasts to ``weights``.

    Returns:
        Counts in [0, 1), shape of ``weights``, float32 at least.
    """
    p = upcast(weights)
    inside = p > 0
    logits = power * torch.where(inside, p * visible, 1.0).log()
    return torch.where(inside, logits.sigmoid(), 0.0)


def _edges(weights: Tensor, visible: Tensor, power: Tensor | float) -> tuple[Tensor, Tensor, Tensor | float]:
    """The nonzero ones of weights (..., keys), and what broadcast to them, one number each: (edges,)."""
    places = weights.flatten().nonzero()[:, 0]
    rows = places // weights.shape[-1]
    if isinstance(power, Tensor):
        power = power.expand(*weights.shape[:-1], 1).flatten()[rows]
    return weights.flatten()[places], visible.flatten()[rows], power


def _power(module: nn.Module, scores: Tensor) -> Tensor | float:
    """``alpha - 1`` of the map of a site, for each head if they differ, without a gradient; 1 for other maps."""
    site: AttentionSite = module.__dict__[SITE]
    if site.map_config is None or not site.map_config.is_entmax:
        return 1.0
    by_head = settings_by_head(site.map_config, module, scores).get("alpha")
    if by_head is not None:
        return by_head.detach().view(-1, 1, 1) - 1
    alpha = site.map_config.alpha
    assert alpha is not None  # every entmax has one
    return alpha - 1


@contextmanager
def soft_edges(model: nn.Module) -> Iterator[SoftEdges]:
    """Count the edges of every call of sparse attention inside the block; softmax that was kept does not count.

    Args:
        model: a sparse model, or a wrapper around one.
    """
    sites = [site for _, site in attention_sites(model) if site.map_config is not None]
    edges = SoftEdges()
    with observing((site, edges) for site in sites):
        yield edges
