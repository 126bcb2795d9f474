"""The settings of a sparse model in its files.

They are saved in four places: the block in ``config.json`` and the name of the attention beside it (``mark``; in the
file one more field is sealed, see ``seal``); for an adapter without its base ``hf_sparse.json``
(``save_adapter_settings``); the record of a source of fertilities in both
(``fertility.source``); and, for people, the model card (``model_card``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from ..attention.interface import NAME
from ..attention.site import AttentionSite, attention_sites
from ..config import KINDS, AttentionRule, SparseConfig
from ..fertility.source import save_source
from .state import sparse_config, state_of

BLOCK = "hf_sparse"
ADAPTER_SETTINGS = "hf_sparse.json"


def tags(dense: list[str] | None, config: SparseConfig) -> list[str]:
    """The tags of a sparse model, after those it had when it was dense."""
    return [*(dense or ()), NAME, *config.map_names]


def mark(model: PreTrainedModel, config: SparseConfig) -> None:
    """Write the settings into a model's configuration, and into those of its parts, which may be used alone.

    The plain attribute ``attn_implementation`` ends up in ``config.json``, where stock Transformers reads a name it
    does not know and refuses to load: without this package no sparse checkpoint comes back dense in silence.

    Args:
        model: it carries the sites of its attention.
        config: the settings of the whole.
    """
    unmark(model)
    _write(model.config, config)
    parts = {id(part) for part in _parts(model.config)}
    sites = [site for _, site in attention_sites(model)]
    for path, module in model.named_modules():
        if not isinstance(module, PreTrainedModel) or block_of(module.config) is not None:
            continue
        if id(module.config) in parts or state_of(module) is not None:
            of_part = part_settings(config, [site for site in sites if site.path.startswith(f"{path}.")])
            if module.get_output_embeddings() not in (None, model.get_output_embeddings()):  # a head of its own
                of_part = replace(of_part, head=None, fused_loss=False)
            if of_part.attn or of_part.head is not None:
                _write(module.config, of_part)


def unmark(model: PreTrainedModel) -> None:
    """Undo ``mark``."""
    of_modules = (module.config for module in model.modules() if isinstance(module, PreTrainedModel))
    for config in (*of_modules, *_parts(model.config)):
        vars(config).pop(BLOCK, None)
        vars(config).pop("attn_implementation", None)


def block_of(config: PreTrainedConfig) -> dict[str, Any] | None:
    """The settings in a configuration as plain data, or None."""
    return vars(config).get(BLOCK)


def marked_part(config: PreTrainedConfig) -> str | None:
    """The type of a part with settings of its own, in a configuration without any; None where there is none."""
    if block_of(config) is not None:
        return None
    return next((part.model_type for part in _parts(config) if block_of(part) is not None), None)


def save_adapter_settings(model: PreTrainedModel, folder: Path) -> None:
    """Write the settings of a sparse model into ``folder`` if it holds an adapter without its base."""
    if (folder / "adapter_config.json").exists():
        settings = json.dumps(sparse_config(model).to_dict(), indent=2)
        (folder / ADAPTER_SETTINGS).write_text(settings + "\n", encoding="utf-8")
        save_source(model, folder)


def _parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            yield part
            yield from _parts(part)


def _write(config: Any, settings: SparseConfig) -> None:
    setattr(config, BLOCK, settings.to_dict())
    config.attn_implementation = NAME


def part_settings(config: SparseConfig, sites: list[AttentionSite]) -> SparseConfig:
    """The settings for a part of a model that holds these sites: rules of single layers for its own layers alone."""
    is_sparse = any(site.map_config is not None for site in sites)
    rules = [rule for rule in config.attn if rule.layer is None] if is_sparse else []
    for kind in filter(config.layers_listed, KINDS):
        own = [config.rule(kind, site.layer) for site in sites if site.kind == kind]
        if any(rule.map is not None for rule in own):
            rules += [AttentionRule(kind, layer, rule.map, rule.coverage) for layer, rule in enumerate(own)]
    return replace(config, attn=tuple(sorted(rules, key=_place_in_model)))


def _place_in_model(rule: AttentionRule) -> tuple[int, int]:
    return (-1 if rule.kind is None else KINDS.index(rule.kind), rule.layer or 0)
