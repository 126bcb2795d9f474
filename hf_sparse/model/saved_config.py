"""The settings of a sparse model, written into its configuration to be saved with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from ..attention import NAME, AttentionSite, attention_sites
from ..config import SparseConfig

BLOCK = "hf_sparse"


def tags(dense: list[str] | None, config: SparseConfig) -> list[str]:
    """The tags of a sparse model, after those it had when it was dense."""
    return [*(dense or ()), NAME, *config.map_names]


def mark(model: PreTrainedModel, block: dict[str, Any]) -> None:
    """Write the settings into a model's configuration, and into those of its parts, which may be loaded alone.

    The plain attribute ``attn_implementation`` ends up in ``config.json``, where stock Transformers reads a name it
    does not know and refuses to load: without this package no sparse checkpoint comes back dense in silence.

    Args:
        model: it carries the sites of its attention.
        block: the settings, plain data.
    """
    unmark(model)
    _write(model.config, block)
    parts = {id(config) for config in _parts(model.config)}
    sites = [site for _, site in attention_sites(model)]
    for path, module in model.named_modules():
        if isinstance(module, PreTrainedModel) and id(module.config) in parts and block_of(module.config) is None:
            of_part = _of_part(block, [site for site in sites if site.path.startswith(f"{path}.")])
            if of_part["attn"] is not None or of_part["head"] is not None:
                _write(module.config, of_part)


def unmark(model: PreTrainedModel) -> None:
    """Undo ``mark``."""
    for config in (model.config, *_parts(model.config)):
        config.__dict__.pop(BLOCK, None)
        config.__dict__.pop("attn_implementation", None)


def block_of(config: PreTrainedConfig) -> dict[str, Any] | None:
    """The settings in a configuration, or None."""
    return config.__dict__.get(BLOCK)


def marked_part(config: PreTrainedConfig) -> str | None:
    """The type of a part with settings of its own, in a configuration without any; None where there is none."""
    if block_of(config) is not None:
        return None
    return next((part.model_type for part in _parts(config) if block_of(part) is not None), None)


def _parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            yield part
            yield from _parts(part)


def _write(config: Any, block: dict[str, Any]) -> None:
    setattr(config, BLOCK, block)
    config.attn_implementation = NAME


def _of_part(block: dict[str, Any], sites: list[AttentionSite]) -> dict[str, Any]:
    """The settings for a part that holds these sites: of lists with an entry a layer, the entries of its layers."""
    attn = block["attn"]
    if attn is None or "name" in attn:
        return block
    own = {
        kind: [map_config[site.layer] for site in sites if site.kind == kind]
        if isinstance(map_config, list)
        else map_config
        for kind, map_config in attn.items()
    }
    kept = {
        kind: map_config for kind, map_config in own.items() if not isinstance(map_config, list) or any(map_config)
    }
    return {**block, "attn": kept or None}
