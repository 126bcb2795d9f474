"""What a sparse model carries: put there and taken away, without asking whether it fits."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from ..attention import (
    NAME,
    SITE,
    add_learned,
    attention_sites,
    divert,
    find_sites,
    follow_cache,
    remove_learned,
    restore,
)
from ..attention.swap_class import change_class
from ..config import SparseConfig
from ..fertility.source import SourceFertility, drop_source, keep_source
from .saved_config import mark, tags, unmark
from .sparse_model import SparseModel, sparse_class
from .visible_loss import restore_losses, show_losses


def attach(
    model: PreTrainedModel, config: SparseConfig, block: dict[str, Any], source: SourceFertility | None = None
) -> None:
    """Make ``model`` sparse; what it was is kept for ``detach``.

    Args:
        model: a dense model.
        config: what to do.
        block: what to save with the model, ``config`` as plain data. A base model loaded from the checkpoint of a
            language model shares its configuration with the whole and keeps the block of the whole.
        source: what the bounds of its cross-attention come from, where it keeps that itself.
    """
    dense: dict[int, str] = {}
    for part in model.modules():
        if isinstance(part, SparseModel):  # a part that was loaded, and made sparse, before the whole
            dense |= {id(config): before for config, before, _ in _take_off(part)}
    configs = _configs(model)
    for part in configs:
        dense.setdefault(id(part), _dense_attention(model, part))
    _remove_sites(model)
    constrained: frozenset[str] = frozenset()
    if config.attn is not None:
        sites = find_sites(model, config, model.config.is_encoder_decoder)
        if any(not site.inline for site in sites):
            model.set_attn_implementation(NAME)
        # Modules of a part that was put into the whole ready-made may read another configuration than the whole's.
        read = {id(model.get_submodule(site.path).__dict__.get("config")) for site in sites if not site.inline}
        for part in configs:
            if part._attn_implementation != NAME:
                # Where attention is computed inline, eager is the way of computing that has weights to return.
                part._attn_implementation_internal = NAME if id(part) in read else "eager"
        for site in sites:
            module = model.get_submodule(site.path)
            module.__dict__[SITE] = site
            add_learned(module, site)
            follow_cache(module, site)
        divert(model)
        constrained = frozenset(site.kind for site in sites if site.is_constrained)
    model._attention_of = [(part, dense[id(part)], part._attn_implementation) for part in configs]
    show_losses(model)
    model._sparse_config = config
    model._sparsity_figures = {}
    model._dense_tags = model.model_tags
    model.model_tags = tags(model.model_tags, config)
    dense_class: Any = type(model)
    change_class(model, sparse_class(dense_class, constrained))
    mark(model, block)
    keep_source(model, source)


def _configs(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """Every configuration that modules of ``model`` read."""
    configs = (module.__dict__.get("config") for module in model.modules())
    return list({id(config): config for config in configs if isinstance(config, PreTrainedConfig)}.values())


def _dense_attention(model: PreTrainedModel, config: PreTrainedConfig) -> str:
    """The attention to go back to. Built from a sparse configuration it was never dense: the default, then."""
    current = config._attn_implementation
    return current if current != NAME else model.get_correct_attn_implementation(None)


def detach(model: PreTrainedModel) -> None:
    """Undo ``attach``."""
    restore(model)
    keep_source(model, None)
    restore_losses(model)
    _remove_sites(model)
    for config, before, now in _take_off(model):
        if config._attn_implementation == now:  # else it was chosen since
            config._attn_implementation_internal = before
    unmark(model)


def _take_off(model: Any) -> list[tuple[Any, str, str]]:
    """Give a model its own class back; its ``_attention_of``."""
    drop_source(model)
    change_class(model, model._dense_class)
    model.model_tags = model.__dict__.pop("_dense_tags")
    del model.__dict__["_sparse_config"], model.__dict__["_sparsity_figures"]
    return model.__dict__.pop("_attention_of")


def _remove_sites(model: nn.Module) -> None:
    for module, site in attention_sites(model):
        remove_learned(module, site)
        if site.hook is not None:
            site.hook.remove()
        del module.__dict__[SITE]
