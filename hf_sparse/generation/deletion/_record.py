"""The supports of every attention call of one forward pass, in the order of the calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...attention import AttentionSite, attention_sites
from ...attention.observer import AttentionObserver
from ...attention.site import observing, trial, weights_under

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
class _Recorder(AttentionObserver):
    """Records the supports of one site."""

    site: AttentionSite
    into: list[SiteCall]

    def add(self, module: nn.Module, scores: Tensor, weights: Tensor) -> None:
        """Record the supports of ``weights`` (rows, heads, queries, keys), and which ``scores`` are not -inf."""
        name, visible = _name(self.site, module), scores > -torch.inf
        if not torch.equal(visible.any(1), visible.all(1)):
            raise ValueError(f"{name} hides other keys from each head: no certificate")
        self.into.append(SiteCall(self.site.kind, name, (weights != 0).any(1), visible.any(1)))


@contextmanager
def recorded_calls(model: PreTrainedModel) -> Iterator[list[SiteCall]]:
    """Collect the calls of attention that run inside the block.

    Raises:
        ValueError: at a call whose scores are not (rows, heads, queries, keys), or whose weights depend on keys of
            weight zero.
    """
    calls: list[SiteCall] = []
    sites = [site for _, site in attention_sites(model)]
    with observing((site, _Recorder(site, calls)) for site in sites), trial(model, {}, _check_scores):
        yield calls


def _name(site: AttentionSite, module: nn.Module) -> str:
    return f"{type(module).__name__} at {site.path!r}"


def _check_scores(site: AttentionSite, module: nn.Module, scores: Tensor) -> None:
    """Refuse scores of another shape, and maps under which keys of weight zero count.

    The second is tried on the scores at hand: with these keys masked the weights must stay as they are.
    """
    name = _name(site, module)
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
