"""Adapters of PEFT in sparse models: saved with the maps they were trained under, and loaded into no other model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .patch import Patch
from .saved_config import check_adapter, check_layers, save_adapter_settings
from .state import state_of, transformers_model


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
    check_adapter(self, model_id, kwargs)
    return original(self, model_id, *args, **kwargs)


_TRIGGER = "a model is built, made sparse or put into a PEFT model after peft was imported"
_NO_OTHER = "An adapter that was trained in a sparse model is not loaded into another."

OF_PEFT = (
    Patch(
        "peft:PeftModel",
        "save_pretrained",
        _save_pretrained,
        reason="An adapter is saved without its base; without the maps it would come back in a dense model.",
        trigger=_TRIGGER,
    ),
    Patch("peft:PeftModel", "from_pretrained", _from_pretrained, reason=_NO_OTHER, trigger=_TRIGGER),
    Patch("peft:PeftModel", "load_adapter", _load_adapter, reason=_NO_OTHER, trigger=_TRIGGER),
)
