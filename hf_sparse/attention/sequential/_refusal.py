"""Modules that cannot have sequential attention, and why."""

from __future__ import annotations

import inspect
from typing import cast

from torch import nn

from ...config import MapConfig
from ...config.settings import PerHead
from ..site import AttentionSite


def sequential_refusal(module: nn.Module, site: AttentionSite) -> str | None:
    """The reason why ``module`` cannot have the sequential attention of ``site``; None where it can or need not."""
    if not site.is_sequential:
        return None
    reason = _kind_refusal(module, site) or _interface_refusal(module, site)
    return _fertility_refusal(module, site) if reason is None and site.is_constrained else reason


def _kind_refusal(module: nn.Module, site: AttentionSite) -> str | None:
    """Self-attention for coverage, an encoder's for bounds."""
    where = _where(module, site)
    if site.has_coverage and site.kind != "cross":
        return f'coverage is what words of a source received, and {where} is self-attention; give a kind, "cross"'
    if site.kind == "encoder":
        name = _name(site)
        return f'{name} bounds what a decoder spends word by word, and {where} is an encoder\'s; give a kind, "cross"'
    return None


def _interface_refusal(module: nn.Module, site: AttentionSite) -> str | None:
    """Attention that does not pass its arguments on to the attention function."""
    parameters = inspect.signature(type(module).forward).parameters.values()
    if site.inline or all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
        return (
            f"{_where(module, site)} does not go through Transformers' attention interface with its arguments, as "
            f"{_name(site)} needs"
        )
    return None


def _fertility_refusal(module: nn.Module, site: AttentionSite) -> str | None:
    """Fertilities that contradict other settings, or that only cross-attention can have."""
    map_config = cast(MapConfig, site.map_config)
    settings = map_config.map_settings
    if settings["shared"] and isinstance(map_config.value("fertility"), PerHead):
        return (
            f"fertility by head and shared=True contradict each other at {site.path!r}; give {_name(site)} one number"
        )
    if site.kind != "cross" and isinstance(settings["fertility"], str):
        return (
            f"{_where(module, site)} is self-attention, whose keys are not known beforehand: "
            f'fertility="{settings["fertility"]}" is for cross-attention'
        )
    return None


def _where(module: nn.Module, site: AttentionSite) -> str:
    return f"{type(module).__name__} at {site.path!r}"


def _name(site: AttentionSite) -> str:
    return "coverage" if site.has_coverage else cast(MapConfig, site.map_config).name
