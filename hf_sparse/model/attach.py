"""Attach and detach sparsity, and change its settings; ``sparsify`` validates."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, cast

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from ..attention.find import find_sites
from ..attention.inline import divert, restore
from ..attention.interface import NAME
from ..attention.sequential import follow_cache
from ..attention.site import SITE, AttentionSite, add_learned, attention_sites, remove_learned
from ..attention.swap_class import change_class
from ..config import SparseConfig
from ..fertility.source import SourceFertility, drop_source, keep_source
from .continuous import forget_batches
from .find import check_whole, sparse_state, transformers_model
from .head_loss import with_other_heads
from .late_attention import check_late_attention
from .saved_config import block_of, mark, part_settings, tags, unmark
from .sparse_model import SparseModel, sparse_class
from .state import PartAttention, SparseState, set_state, state_of
from .visible_loss import restore_losses, show_losses


def attach(
    model: PreTrainedModel,
    config: SparseConfig,
    source: SourceFertility | None = None,
    *,
    saved: SparseConfig | None = None,
) -> None:
    """Make ``model`` sparse; its dense state is kept for ``detach``.

    Args:
        model: a dense model.
        config: the maps, complete.
        source: the source of the bounds of its cross-attention, where the model keeps that itself.
        saved: the settings to save with the model, where they are not ``config``: a base model that was loaded from
            the checkpoint of a language model shares its configuration with the whole, and keeps those of the whole.
    """
    names = [(each, _dense_attention(model, each)) for each in _configs(model)]
    with ExitStack() as undo:
        undo.callback(_take_back, model, names)
        _attach(model, config, source, saved or config)
        undo.pop_all()  # all is well: stay sparse


def _take_back(model: PreTrainedModel, names: list[tuple[PreTrainedConfig, str]]) -> None:
    """Undo an ``attach`` that ended in the middle; ``names`` are those of dense attention, by configuration."""
    detach(model)
    for config, name in names:
        config._attn_implementation_internal = name


def _attach(model: PreTrainedModel, config: SparseConfig, source: SourceFertility | None, saved: SparseConfig) -> None:
    forget_batches(model)
    dense: dict[int, str] = {}
    for part in model.modules():
        if isinstance(part, SparseModel):  # a part that was loaded, and made sparse, before the whole
            drop_source(part)
            dense |= {id(attention.config): attention.dense for attention in _remove_state(part)}
    configs = _configs(model)
    for each in configs:
        dense.setdefault(id(each), _dense_attention(model, each))
    _remove_sites(model)
    sites = find_sites(model, config)
    _name_attention(model, configs, sites)
    for site in sites:
        module = model.get_submodule(site.path)
        vars(module)[SITE] = site
        add_learned(module, site)
        follow_cache(module, site)
    divert(model)
    show_losses(model)
    state = SparseState(config)
    state.attention = [PartAttention(each, dense[id(each)], each._attn_implementation) for each in configs]
    _add_state(model, state, sites)
    _add_parts(model, state, sites)
    mark(model, saved)
    keep_source(model, source)
    for part in model.modules():
        own = state_of(part)
        if own is not None and own.config.attn:
            own.children = check_late_attention(part, [])


def detach(model: PreTrainedModel) -> None:
    """Undo ``attach``."""
    forget_batches(model)
    restore(model)
    keep_source(model, None)
    restore_losses(model)
    _remove_sites(model)
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel) and part is not model]
    named = [attention for part in (*parts, model) for attention in _remove_state(part)]
    for attention in named:
        if attention.config._attn_implementation == attention.sparse:  # else it was chosen since
            attention.name(attention.dense)
    _name_copies(model, named)
    unmark(model)


def _name_copies(model: PreTrainedModel, named: list[PartAttention]) -> None:
    """Give back their dense attention to configurations that layers read which were copied since, as in up-scaling.

    A copied layer has a copy of its configuration, with the name of the sparse attention and the settings in it.
    """
    known = {id(attention.config) for attention in named}
    for config in _configs(model):
        if id(config) in known or block_of(config) is None:
            continue
        copied = (attention for attention in named if type(attention.config) is type(config))
        config._attn_implementation_internal = next(
            (each.dense for each in copied if each.sparse == config._attn_implementation), config._attn_implementation
        )


def change_settings(model: nn.Module, config: SparseConfig) -> None:
    """Give a sparse model other maps where it has maps already; its configuration, and what is saved, follow.

    Figures that were measured under the old maps are forgotten.

    Args:
        model: a sparse model. Changed in place.
        config: sparse where the model is, with a fused loss and learned settings where the model has them.

    Raises:
        ValueError: the model is not sparse, or a part of a sparse one.
    """
    check_whole(model)
    state, inner = sparse_state(model), transformers_model(model)
    own_configs(model)
    if config != state.config:
        forget_batches(inner)
    sites = [site for _, site in attention_sites(inner)]
    for site in sites:
        site.map_config = config.attention(site.kind, site.layer)
    if config != state.config:
        state.metrics = {}
    added = _added_tags(inner, state)
    state.settings, state.target = config, None
    inner.model_tags = [*tags(state.dense_tags, config), *added]
    for part, of_part, _ in _parts(inner, state, sites):
        own = state_of(part)
        assert own is not None
        own.settings = of_part
        part.model_tags = tags(own.dense_tags, of_part)
    mark(inner, config)


Places = list[tuple[nn.Module, str, PreTrainedConfig]]


def places_of_configs(model: nn.Module) -> Places:
    """The configurations of a model, with the modules and attributes that hold them."""
    return [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, PreTrainedConfig)
    ]


def put_configs(places: Places) -> None:
    """Have modules hold these very configurations again."""
    for module, name, config in places:
        vars(module)[name] = config


@contextmanager
def kept_configs(model: nn.Module) -> Iterator[None]:
    """Leave a model that is sparse only inside the block with the very configurations it had."""
    before = places_of_configs(model)
    try:
        yield
    finally:
        put_configs(before)


def own_configs(model: nn.Module) -> None:
    """Give a model configurations of its own: copies, shared inside the model as the originals were.

    What is written into them is then read by no other model that was built from the same ones.

    Args:
        model: a Transformers model, or a PEFT model around one, which keeps the configuration too.
    """
    state = state_of(model)
    if state is not None and state.owns_configs:
        return
    copies: dict[int, Any] = {}
    put_configs([(module, name, copy.deepcopy(config, copies)) for module, name, config in places_of_configs(model)])
    if state is not None:
        state.owns_configs = True
        for attention in (attention for each in (state, *state.parts) for attention in each.attention):
            attention.config = copies.get(id(attention.config), attention.config)


def _configs(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """Every configuration that modules of ``model`` read."""
    configs = (vars(module).get("config") for module in model.modules())
    return list({id(config): config for config in configs if isinstance(config, PreTrainedConfig)}.values())


def _dense_attention(model: PreTrainedModel, config: PreTrainedConfig) -> str:
    """The attention to go back to. Built from a sparse configuration it was never dense: the default, then."""
    current = config._attn_implementation
    return current if current != NAME else model.get_correct_attn_implementation(None)


def _name_attention(model: PreTrainedModel, configs: list[PreTrainedConfig], sites: list[AttentionSite]) -> None:
    """Let the configurations that are read by modules with a site name our attention, and all others eager.

    Where attention is computed inline, eager is the implementation that has weights to return.
    """
    if not sites:
        return
    if any(not site.inline for site in sites):
        model.set_attn_implementation(NAME)
    # Modules of a part that was put into the whole ready-made may read another configuration than the whole's.
    read = {id(vars(model.get_submodule(site.path)).get("config")) for site in sites if not site.inline}
    for config in configs:
        if config._attn_implementation != NAME:
            config._attn_implementation_internal = NAME if id(config) in read else "eager"


def _add_state(model: PreTrainedModel, state: SparseState, sites: list[AttentionSite]) -> None:
    """Give a model its sparse class and its state; ``sites`` are its own."""
    state.with_other_heads = with_other_heads(model)
    state.dense_tags = model.model_tags
    set_state(model, state)
    model.model_tags = tags(model.model_tags, state.config)
    constrained = frozenset(site.kind for site in sites if site.is_constrained)
    dense_class: Any = type(model)
    change_class(model, sparse_class(dense_class, constrained))


def _add_parts(model: PreTrainedModel, state: SparseState, sites: list[AttentionSite]) -> None:
    """Make every model inside ``model`` sparse by itself, with the rules and the head that are its own."""
    for part, config, own_sites in list(_parts(model, state, sites)):
        read = {id(each) for each in _configs(part)}
        own = SparseState(config, [each for each in state.attention if id(each.config) in read])
        own.whole = type(model).__name__
        _add_state(part, own, own_sites)
        state.parts.append(own)


def _parts(
    model: PreTrainedModel, state: SparseState, sites: list[AttentionSite]
) -> Iterator[tuple[PreTrainedModel, SparseConfig, list[AttentionSite]]]:
    """The models inside ``model`` with sparse attention or its sparse head, their settings and their sites."""
    head = model.get_output_embeddings()
    for path, part in model.named_modules():
        if part is model or not isinstance(part, PreTrainedModel):
            continue
        own = [site for site in sites if site.path.startswith(f"{path}.")]
        config = part_settings(state.config, own)
        if config.head is None or part.get_output_embeddings() is not head:
            config = replace(config, head=None, fused_loss=False)
        if config.attn or config.head is not None:
            yield part, config, own


def _remove_state(model: PreTrainedModel) -> list[PartAttention]:
    """Give a model its dense class back; the attention its configurations named."""
    state = state_of(model)
    if state is None:
        return []
    if isinstance(model, SparseModel):
        change_class(cast(nn.Module, model), type(model)._dense_class)
    added = _added_tags(model, state)
    vars(model).pop("model_tags", None)
    if state.dense_tags is not None or added:
        model.model_tags = [*(state.dense_tags or ()), *added]
    set_state(model, None)
    return state.attention


def _added_tags(model: PreTrainedModel, state: SparseState) -> list[str]:
    """The tags that somebody gave a model since it is sparse."""
    own = tags(state.dense_tags, state.settings)
    return [tag for tag in model.model_tags or () if tag not in own]


def _remove_sites(model: nn.Module) -> None:
    for module, site in attention_sites(model):
        remove_learned(module, site)
        if site.hook is not None:
            site.hook.remove()
        del vars(module)[SITE]
