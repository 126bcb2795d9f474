"""The settings of a sparse model in its files.

They are saved in four places: the block in ``config.json`` and the name of the attention beside it (``mark``; in the
file three fields are sealed, see ``seal``); for an adapter without its base ``hf_sparse.json``
(``peft_guard``); the record of a source of fertilities in both (``fertility.source``); and, for people, the model card
(``model_card``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file

from ..attention.interface import NAME
from ..attention.site import AttentionSite, attention_sites
from ..config import AttentionRule, SparseConfig
from ..config.sparse_config import KINDS
from .find import described, sparse_config, sparse_state
from .state import state_of

BLOCK = "hf_sparse"
PARTS = "hf_sparse_parts"
ADAPTER_SETTINGS = "hf_sparse.json"
_WHERE = ("revision", "token", "cache_dir", "subfolder", "local_files_only", "force_download")


def tags(dense: list[str] | None, config: SparseConfig) -> list[str]:
    """The tags of a sparse model, after those it had when it was dense."""
    return [*(dense or ()), NAME, *config.map_names]


def mark(model: PreTrainedModel, config: SparseConfig) -> None:
    """Write the settings into a model's configuration, and into those of its parts, which may be used alone.

    Beside them stands the name of sparse attention, which others read in memory, and in every file that is made by
    ``to_dict`` (see ``to_marked_dict``). Stock Transformers does not know that name and refuses to load: without this
    package no sparse checkpoint comes back dense in silence.

    Parts that read the configuration of the whole find theirs there by the name of their class, if they hold some of
    the layers of a kind with a map for each layer, and others hold the rest.

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
    some = {}
    for path, module in model.named_modules():
        if not isinstance(module, PreTrainedModel) or module.config is not model.config:
            continue
        own = [site for site in sites if site.path.startswith(f"{path}.")]
        if any(0 < sum(site.kind == kind for site in own) < config.layers_listed(kind) for kind in KINDS):
            some[type(module).__name__] = part_settings(config, own).to_dict()
    if some:
        setattr(model.config, PARTS, some)


def unmark(model: PreTrainedModel) -> None:
    """Undo ``mark``."""
    of_modules = (module.config for module in model.modules() if isinstance(module, PreTrainedModel))
    for config in (*of_modules, *_parts(model.config)):
        vars(config).pop(BLOCK, None)
        vars(config).pop(PARTS, None)
        vars(config).pop("attn_implementation", None)


def block_of(config: PreTrainedConfig) -> dict[str, Any] | None:
    """The settings in a configuration as plain data, or None."""
    return vars(config).get(BLOCK)


def parts_of(config: PreTrainedConfig) -> dict[str, dict[str, Any]]:
    """The settings, by class, of parts with some of the layers of the configuration's model."""
    return vars(config).get(PARTS, {})


def marked_part(config: PreTrainedConfig) -> str | None:
    """The type of a part with settings of its own, in a configuration without any; None where there is none."""
    if block_of(config) is not None:
        return None
    return next((part.model_type for part in _parts(config) if block_of(part) is not None), None)


class AdapterSettings(NamedTuple):
    """What an adapter needs to know of the sparse model that it was trained in.

    Attributes:
        config: the maps.
        architecture: the name of the model's class; None in files that do not say.
        id2label: the names of its labels by number; None in files that do not say.
    """

    config: SparseConfig
    architecture: str | None = None
    id2label: dict[int, str] | None = None

    @classmethod
    def read(cls, path: str | Path) -> AdapterSettings:
        """Those of a file.

        Raises:
            ValueError: settings that are not known.
        """
        block = json.loads(Path(path).read_text(encoding="utf-8"))
        architecture, labels = block.pop("architecture", None), block.pop("id2label", None)
        by_number = None if labels is None else {int(number): label for number, label in labels.items()}
        return cls(SparseConfig.from_dict(block), architecture, by_number)


def where_on_hub(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that say where on the Hub a file is, and how it is fetched."""
    return {key: kwargs[key] for key in _WHERE if key in kwargs}


def found_file(path: str | Path, name: str, kwargs: Mapping[str, Any]) -> str | None:
    """A file of a folder or of a Hub repository; None where it is not there."""
    quiet = ("gated_repo", "missing_entries", "connection_errors")
    where = where_on_hub(kwargs) | {f"_raise_exceptions_for_{name}": False for name in quiet}
    found: str | None = cached_file(path, name, **where)
    return found


def check_adapter(model: nn.Module, path: str | Path | None, where: Mapping[str, Any]) -> None:
    """Refuse an adapter that was trained in a sparse model for another, dense or sparse.

    Args:
        model: what the adapter is to be loaded into.
        path: a local folder or a Hub id of an adapter; None for one that is not read from files.
        where: where on the Hub it is (revision, token, ...), perhaps among other arguments.

    Raises:
        ValueError: the adapter's folder holds other settings than the model's.
    """
    saved = None if path is None else found_file(path, ADAPTER_SETTINGS, where)
    if saved is None:
        return
    config, state = AdapterSettings.read(saved).config, state_of(model)
    if state is None or state.config.maps != config.maps:
        raise ValueError(
            f"the adapter {path} was trained in a model with {config.to_dict()}, and this {type(model).__name__} "
            f"{described(state)}: load the adapter with hf_sparse.from_pretrained, or call sparsify with these "
            "settings first"
        )


def check_marked(model: PreTrainedModel) -> None:
    """Refuse to save a model whose configuration names other maps than it has, or none: another model would come back.

    Raises:
        ValueError: the configuration, or the block in it, was exchanged.
    """
    own, block = sparse_state(model).settings, parts_of(model.config).get(type(model).__name__, block_of(model.config))
    saved = None if block is None else SparseConfig.from_dict(block)
    if saved is not None and model.get_output_embeddings() is None:  # a base model keeps the head of the whole
        saved = replace(saved, head=own.head)
    if own.maps != (saved and saved.maps) and (own.attn or own.head):
        names = "no maps" if saved is None else saved.to_dict()
        raise ValueError(
            f"the configuration of this {type(model).__name__} was exchanged since it was made sparse: it names "
            f"{names}, and the model has {own.to_dict()}; give it back its own configuration, and change fields of "
            "that, as with model.config.update({...})"
        )


def check_layers(model: PreTrainedModel) -> None:
    """Refuse to save a model whose layers no longer have the maps that its settings list for their places.

    Raises:
        ValueError: layers with maps of their own were moved or removed.
    """
    config, numbers = sparse_config(model), dict.fromkeys(KINDS, 0)
    moved = []
    for _, site in attention_sites(model):
        rule = config.rule(site.kind, numbers[site.kind])
        numbers[site.kind] += 1
        if (rule.map, rule.coverage) != (site.map_config, site.coverage):
            moved.append(site.kind)
    listed = {kind: config.layers_listed(kind) for kind in KINDS}
    # A part of an encoder-decoder has no layers of other kinds, and keeps their maps for the whole.
    removed = [kind for kind in KINDS if listed[kind] and numbers[kind] not in (0, listed[kind])]
    for kind in (*moved, *removed):
        raise ValueError(
            f"layers of this {type(model).__name__} were moved or removed after it was made sparse, and its {kind} "
            "attention has a map for each layer, so that another model would be saved; call unsparsify(model), then "
            "sparsify with the maps in their new order"
        )


def _parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            yield part
            yield from _parts(part)


def _write(config: Any, settings: SparseConfig) -> None:
    setattr(config, BLOCK, settings.to_dict())
    config.attn_implementation = NAME


def to_marked_dict(original: Callable[..., dict[str, Any]], self: PreTrainedConfig) -> dict[str, Any]:
    """``PreTrainedConfig.to_dict`` that names the attention of a sparse model.

    A configuration that was read from a file has lost the plain attribute, and may be written into another's file.
    """
    saved = original(self)
    if block_of(self) is not None:
        saved["attn_implementation"] = NAME
    return saved


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
