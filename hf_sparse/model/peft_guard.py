"""Adapters of PEFT in sparse models: saved with the maps they were trained under, and loaded into no other model."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from ..fertility.source import SOURCE_FILES, save_source
from .find import sparse_config, transformers_model
from .patch import Patch
from .saved_config import ADAPTER_SETTINGS, AdapterSettings, check_adapter, check_layers
from .seal import read_sealed_adapter, seal_adapter
from .state import state_of

_SHADOW = (
    "PEFT's Shadow copies layers of this {} into a network of its own, whose attention and loss would not follow "
    "those of a sparse model: use another adapter"
)


def save_adapter_settings(model: PreTrainedModel, folder: Path) -> None:
    """Write the settings of a sparse model into ``folder`` if it holds an adapter without its base, and seal that."""
    adapter = folder / ADAPTER_CONFIG_NAME
    if adapter.exists():
        of_class = {"architecture": type(model).__name__, "id2label": model.config.id2label}
        settings = json.dumps(sparse_config(model).to_dict() | of_class, indent=2)
        (folder / ADAPTER_SETTINGS).write_text(settings + "\n", encoding="utf-8")
        save_source(model, folder)
        seal_adapter(adapter)


def drop_adapter_settings(folder: Path) -> None:
    """Remove the settings of an adapter that lay in ``folder`` before that of a dense model took its place."""
    (folder / ADAPTER_SETTINGS).unlink(missing_ok=True)


def _describe(model: Any, folder: Path) -> None:
    """Have the settings beside an adapter that was written into ``folder`` be those of its model, sparse or dense."""
    if state_of(model) is None:
        drop_adapter_settings(folder)
    else:
        save_adapter_settings(transformers_model(model), folder)


def _save_pretrained(original: Callable[..., None], self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> None:
    if state_of(self) is not None:
        check_layers(transformers_model(self))
    original(self, save_directory, *args, **kwargs)
    given = inspect.signature(original).bind(self, save_directory, *args, **kwargs).arguments
    if not given.get("is_main_process", True):
        return
    for name in given.get("selected_adapters") or self.peft_config:
        _describe(self, Path(save_directory) / ("" if name == "default" else name))


def _from_pretrained(
    original: Callable[..., Any], cls: Any, model: Any, model_id: Any, *args: object, **kwargs: Any
) -> Any:
    check_adapter(model, model_id, kwargs)
    return original(cls, model, model_id, *args, **kwargs)


def _load_adapter(original: Callable[..., Any], self: Any, model_id: Any, *args: object, **kwargs: Any) -> Any:
    # A PeftMixedModel, which calls this too, says otherwise what is inside.
    model = self if hasattr(self, "get_base_model") else self.base_model.model
    check_adapter(model, model_id, kwargs)
    return original(self, model_id, *args, **kwargs)


def _hotswap_adapter(
    original: Callable[..., Any], model: Any, model_name_or_path: Any, *args: object, **kwargs: Any
) -> Any:
    check_adapter(model, model_name_or_path, kwargs)
    return original(model, model_name_or_path, *args, **kwargs)


def _cpt_forward(original: Callable[..., Any], self: Any, *args: object, **kwargs: Any) -> Any:
    state = state_of(self)
    if kwargs.get("labels") is not None and state is not None and state.config.head is not None:
        raise ValueError(
            f"CPT computes softmax's loss from the scores itself, and the head of this {type(self).__name__} has "
            f"{state.config.head.name}: use another adapter, or sparsify with head=None"
        )
    return original(self, *args, **kwargs)


def _save_as_lora(original: Callable[..., None], path: Any, model: Any, *args: object, **kwargs: Any) -> None:
    original(path, model, *args, **kwargs)
    _describe(model, Path(path))


def _load_into_xlora(
    original: Callable[..., None], lora_model: Any, adapter_name: str, model_id: Any, *args: object, **kwargs: Any
) -> None:
    check_adapter(lora_model.model, model_id, kwargs)
    original(lora_model, adapter_name, model_id, *args, **kwargs)


def _compose_cartridges(
    original: Callable[..., None], adapter_paths: Any, *args: object, output_path: Any, **kwargs: Any
) -> None:
    saved = [Path(path) / ADAPTER_SETTINGS for path in adapter_paths]
    configs = [AdapterSettings.read(file).config.maps if file.exists() else None for file in saved]
    if any(config != configs[0] for config in configs):
        under = ", ".join("softmax" if config is None else str(config.to_dict()) for config in configs)
        raise ValueError(f"these adapters were trained under maps that differ, {under}: compose those of one model")
    original(adapter_paths, *args, output_path=output_path, **kwargs)
    if configs and configs[0] is None:
        drop_adapter_settings(Path(output_path))
    if configs and configs[0] is not None:
        for file in (saved[0], *(saved[0].with_name(name) for name in SOURCE_FILES)):
            if file.exists() and file.parent.resolve() != Path(output_path).resolve():
                shutil.copy(file, output_path)
        seal_adapter(Path(output_path) / ADAPTER_CONFIG_NAME)


def check_no_shadow(model: nn.Module) -> None:
    """Refuse a model with a Shadow adapter, which would not follow the maps of the model.

    Raises:
        ValueError: it has one.
    """
    tuner = getattr(model, "base_model", None)
    if hasattr(tuner, "shadow_backbone"):
        raise ValueError(_SHADOW.format(type(transformers_model(model)).__name__))


def _shadow_hook(original: Callable[..., None], self: Any, model: Any, *args: object, **kwargs: object) -> None:
    if state_of(model) is not None:
        raise ValueError(_SHADOW.format(type(model).__name__))
    original(self, model, *args, **kwargs)


def _wherever(name: str, replacement: Callable[..., None], *owners: str) -> tuple[Patch, ...]:
    """Patches of one function in all modules that hold it under its name."""
    reason = "It writes an adapter past PeftModel.save_pretrained, without the maps."
    return tuple(Patch(owner, name, replacement, reason=reason, after="peft") for owner in owners)


_NO_OTHER = "An adapter that was trained in a sparse model is not loaded into another."

OF_PEFT = (
    Patch(
        "peft:PeftModel",
        "save_pretrained",
        _save_pretrained,
        reason="An adapter is saved without its base; without the maps it would come back in a dense model.",
        after="peft",
    ),
    Patch("peft:PeftModel", "from_pretrained", _from_pretrained, reason=_NO_OTHER, after="peft"),
    Patch("peft:PeftModel", "load_adapter", _load_adapter, reason=_NO_OTHER, after="peft"),
    Patch("peft.utils.hotswap", "hotswap_adapter", _hotswap_adapter, reason=_NO_OTHER, after="peft"),
    Patch(
        "peft.config:PeftConfigMixin",
        "from_json_file",
        read_sealed_adapter,
        reason="Such an adapter is refused, with this package's name, by all that opens it without this package; with "
        "this package it opens.",
        after="peft",
    ),
    Patch(
        "peft:PeftModelForCausalLM",
        "_cpt_forward",
        _cpt_forward,
        reason="It puts a dense loss in the place of that of a sparse head.",
        after="peft",
    ),
    *_wherever(
        "save_as_lora", _save_as_lora, "peft", "peft.tuners", "peft.tuners.lora", "peft.tuners.lora.conversion"
    ),
    *_wherever("compose_cartridge_adapters", _compose_cartridges, "peft", "peft.tuners.cartridge.utils"),
    Patch(
        "peft.tuners.xlora.model",
        "_load_adapter_into_lora_model",
        _load_into_xlora,
        reason=_NO_OTHER,
        after="peft.tuners.xlora.model",
    ),
    Patch(
        "peft.tuners.shadow.model:ShadowModel",
        "_pre_injection_hook",
        _shadow_hook,
        reason="Its network has maps of its own, which nothing here would change or save.",
        after="peft.tuners.shadow.model",
    ),
)
