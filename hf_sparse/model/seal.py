"""The seal on configuration files: fields that this package alone reads, so that no sparse checkpoint opens as dense.

Transformers takes ``attn_implementation`` from a caller in the place of the one that was saved, and servers have an
attention of their own. Auto classes and servers choose by ``model_type``, explicit classes read their own fields by
their types. The base class, by which ``Trainer`` reads the checkpoint that it goes on from, checks no field, and looks
``dtype`` up. In the files of a sparse model a sentence that names this package stands behind ``model_type`` and
``dtype``, and one of the model's own fields holds a record in its place: that sentence, and the value. In
``adapter_config.json`` of an adapter that was trained in a sparse model these are ``peft_type``, by which PEFT
chooses, and the rank ``r``, which servers read. Configurations in memory are never sealed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from .saved_config import BLOCK, block_of

SENTENCE = "the attention or the head of this checkpoint is sparse: import hf_sparse before you load it"
_TYPES = ("model_type", "dtype", "peft_type")
_VALUE = "value"
_BEHIND_TYPE = f": {SENTENCE}"


def write_sealed(
    original: Callable[..., None], self: PreTrainedConfig, json_file_path: str | Path, *args: object, **kwargs: Any
) -> None:
    """``PreTrainedConfig.to_json_file`` that seals the settings of sparse models, and of the parts inside."""
    original(self, json_file_path, *args, **kwargs)
    file = Path(json_file_path)
    saved = json.loads(file.read_text(encoding="utf-8"))
    if _seal(self, saved):
        file.write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_sealed(
    original: Callable[..., dict[str, Any]], cls: type[PreTrainedConfig], json_file: str | Path
) -> dict[str, Any]:
    """``PreTrainedConfig._dict_from_json_file`` that gives sealed fields their values back."""
    return _unsealed(original(cls, json_file))


def read_sealed_adapter(
    original: Callable[..., dict[str, Any]], cls: Any, path_json_file: str | Path, **kwargs: Any
) -> dict[str, Any]:
    """``PeftConfigMixin.from_json_file`` that gives sealed fields their values back."""
    return _unsealed(original(cls, path_json_file, **kwargs))


def seal_adapter(file: Path) -> None:
    """Seal an ``adapter_config.json``, once."""
    saved = _unsealed(json.loads(file.read_text(encoding="utf-8")))
    saved["peft_type"] = f"{saved['peft_type']}{_BEHIND_TYPE}"
    if "r" in saved:
        saved["r"] = {BLOCK: SENTENCE, _VALUE: saved["r"]}
    file.write_text(json.dumps(saved, indent=2, sort_keys=True), encoding="utf-8")


def sealed_field(cls: Any, record: dict[str, object]) -> str:
    """The field of a configuration's class to seal: the first of its own that refuses a record by its type.

    Such a field is always saved, and no reader of the file does without it. The few classes that check no types have
    their labels sealed, whose names have to be numbers.
    """
    own = [name for name in cls.__validators__ if name not in PreTrainedConfig.__validators__]
    return next((name for name in own if _refuses(cls.__validators__[name], record)), "id2label")


def _refuses(validators: list[Callable[[object], None]], value: object) -> bool:
    try:
        for validate in validators:
            validate(value)
    except (TypeError, ValueError):
        return True
    return False


def _seal(config: PreTrainedConfig, saved: dict[str, Any]) -> bool:
    """Seal what was saved of a configuration and its parts, where they are sparse; whether any was."""
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    sealed = [
        _seal(part, saved[name])
        for name, part in parts.items()
        if isinstance(part, PreTrainedConfig) and isinstance(saved.get(name), dict)
    ]
    if block_of(config) is None:
        return any(sealed)
    # Transformers reads no configuration that asks for weights of another attention than its own eager one.
    saved.pop("output_attentions", None)
    for name in _TYPES:
        if isinstance(saved.get(name), str):
            saved[name] += _BEHIND_TYPE
    record: dict[str, object] = {BLOCK: SENTENCE}
    name = sealed_field(type(config), record)
    if name in saved:
        record[_VALUE] = saved[name]
    saved[name] = record
    return True


def _unsealed(saved: dict[str, Any]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, value in saved.items():
        if name in _TYPES and isinstance(value, str):
            values[name] = value.removesuffix(_BEHIND_TYPE)
        elif not isinstance(value, dict):
            values[name] = value
        elif not isinstance(value.get(BLOCK), str):
            values[name] = _unsealed(value)
        elif _VALUE in value:
            values[name] = value[_VALUE]
    return values
