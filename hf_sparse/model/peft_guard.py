"""Adapters of PEFT in sparse models: saved with the maps they were trained under, and loaded into no other model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..fertility.source import save_source
from .patch import Patch
from .saved_config import ADAPTER_SETTINGS, check_adapter, check_layers
from .seal import read_sealed_adapter, seal_adapter
from .state import sparse_config, state_of, transformers_model


def save_adapter_settings(model: PreTrainedModel, folder: Path) -> None:
    """Write the settings of a sparse model into ``folder`` if it holds an adapter without its base, and seal that."""
    adapter = folder / "adapter_config.json"
    if adapter.exists():
        of_class = {"architecture": type(model).__name__, "id2label": model.config.id2label}
        settings = json.dumps(sparse_config(model).to_dict() | of_class, indent=2)
        (folder / ADAPTER_SETTINGS).write_text(settings + "\n", encoding="utf-8")
        save_source(model, folder)
        seal_adapter(adapter)


def _save_pretrained(original: Callable[..., None], self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> None:
    if state_of(self) is not None:
        check_layers(transformers_model(self))
    original(self, save_directory, *args, **kwargs)
    if state_of(self) is None or not kwargs.get("is_main_process", True):
        return
    for name in kwargs.get("selected_adapters") or self.peft_config:
        folder = Path(save_directory) / ("" if name == "default" else name)
        save_adapter_settings(transformers_model(self), folder)


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
)
