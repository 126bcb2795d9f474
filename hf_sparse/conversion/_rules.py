"""Maps by the path of their site, and the rules of a configuration that they amount to."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..attention import attention_sites
from ..config import AttentionRule, MapConfig
from ..config.sparse_config import KINDS

MapsByPath = Mapping[str, MapConfig | None]


def all_softmax(model: nn.Module) -> dict[str, MapConfig | None]:
    """Softmax for every site of a sparse model, by path."""
    return dict.fromkeys(site.path for _, site in attention_sites(model))


def rules(model: nn.Module, maps: MapsByPath) -> tuple[AttentionRule, ...]:
    """One rule per layer, for the kinds of attention with a map in some layer.

    Args:
        model: a sparse model.
        maps: the map of each site by its path; None, or left out, for softmax.
    """
    sites = sorted((site for _, site in attention_sites(model)), key=lambda site: (KINDS.index(site.kind), site.layer))
    sparse_kinds = {site.kind for site in sites if maps.get(site.path) is not None}
    return tuple(
        AttentionRule(site.kind, site.layer, maps.get(site.path), site.coverage)
        for site in sites
        if site.kind in sparse_kinds
    )
