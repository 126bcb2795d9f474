"""The supports of every attention call of one forward pass, in the order of the calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...attention import AttentionSite, SupportCount, attention_sites
from ...attention.site import trial, weights_under

# Weights of other keys than those of weight zero may move by this much in float64 when the latter are masked.
_ROUNDING = 1e-6


class SiteCall(NamedTuple):
    """One call of attention.

    Attributes:
        kind: ``"encoder"``, ``"decoder"`` or ``"cross"``.
        name: class and path of the module, for messages.
        attended: (rows, queries, keys) whether some head gives the key a weight other than zero.
        visible: (rows, queries, keys) whether it may: the key is not masked.
    """

    kind: str
    name: str
    attended: Tensor
    visible: Tensor


@dataclass
class _Recorder(SupportCount):
    """Records the supports of one site."""

    site: AttentionSite | None = None
    into: list[SiteCall] = field(default_factory=list)
    name: str = ""

    def add(self, weights: Tensor, scores: Tensor) -> None:
        """Record the supports of ``weights`` (rows, heads, queries, keys), and which ``scores`` are not -inf."""
        assert self.site is not None
        visible = scores > -torch.inf
        if not torch.equal(visible.any(1), visible.all(1)):
            raise ValueError(f"{self.name} hides other keys from each head: no certificate")
        self.into.append(SiteCall(self.site.kind, self.name, (weights != 0).any(1), visible.any(1)))


@contextmanager
def recorded_calls(model: PreTrainedModel) -> Iterator[list[SiteCall]]:
    """Collect the calls of attention that run inside the block.

    Raises:
        ValueError: at a call whose scores are not (rows, heads, queries, keys), or whose weights depend on keys of
            weight zero.
    """
    calls: list[SiteCall] = []
    sites = [site for _, site in attention_sites(model)]
    recorders = {site.path: _Recorder(site=site, into=calls) for site in sites}

    def look(site: AttentionSite, module: nn.Module, scores: Tensor) -> None:
        name = recorders[site.path].name = f"{type(module).__name__} at {site.path!r}"
        _check_scores(name, site, module, scores)

    before = [site.counts for site in sites]
    for site in sites:
        site.counts = recorders[site.path]
    try:
        with trial(model, {}, look):
            yield calls
    finally:
        for site, counts in zip(sites, before):
            site.counts = counts


def _check_scores(name: str, site: AttentionSite, module: nn.Module, scores: Tensor) -> None:
    """Refuse scores of another shape, and maps under which keys of weight zero count.

    The second is tried on the scores at hand: with these keys masked the weights must stay as they are.
    """
    if scores.dim() != 4:
        raise ValueError(f"{name} has scores {tuple(scores.shape)}, not (rows, heads, queries, keys): no certificate")
    exact = scores.double()
    weights = weights_under(site.map_config, module, exact)
    without = weights_under(site.map_config, module, exact.masked_fill(weights == 0, -torch.inf))
    if not float((weights - without).abs().amax()) <= _ROUNDING:
        assert site.map_config is not None  # softmax gives every visible key some weight
        raise ValueError(
            f"{name}: the weights of {site.map_config.name} depend on keys of weight zero, so that none can be "
            "deleted; certificates need a map of the entmax family with settings that do not count keys"
        )
