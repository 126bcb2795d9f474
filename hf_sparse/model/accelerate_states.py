"""Accelerate's checkpoints hold the weights alone: beside them lie the maps, under which alone they are loaded again.

Under FSDP and DeepSpeed Accelerate loads weights elsewhere, and nothing is compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from ..config import SparseConfig
from ..files import write_whole
from .find import sparse_config, sparse_models
from .patch import Patch

_MAPS = "hf_sparse_maps.json"


def _save_state(original: Callable[..., Any], self: Any, *args: object, **kwargs: object) -> Any:
    folder = original(self, *args, **kwargs)
    each_node = self.project_configuration.save_on_each_node
    if self.is_local_main_process if each_node else self.is_main_process:
        saved = [[config.to_dict() for config in _configs(model)] for model in self._models]
        if any(saved):
            write_whole(Path(folder, _MAPS), (json.dumps(saved, indent=2) + "\n").encode())
        else:
            Path(folder, _MAPS).unlink(missing_ok=True)
    return folder


def _load_state(
    original: Callable[..., Any], input_dir: str | Path, models: list[nn.Module], *args: object, **kwargs: object
) -> Any:
    file = Path(input_dir, _MAPS)
    saved = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    for model, blocks in zip(models, saved):
        trained, found = [SparseConfig.from_dict(block) for block in blocks], _configs(model)
        if trained and [config.maps for config in trained] != [config.maps for config in found]:
            has = ", ".join(str(config.to_dict()) for config in found)
            raise ValueError(
                f"{input_dir} was saved from a model with {', '.join(map(str, blocks))}, and this "
                f"{type(model).__name__} {f'has {has}' if has else 'is dense'}: load the sparse model with "
                "hf_sparse.from_pretrained, or call sparsify with these settings, before load_state"
            )
    return original(input_dir, models, *args, **kwargs)


def _configs(model: nn.Module) -> list[SparseConfig]:
    return [sparse_config(part) for part in sparse_models(model)]


OF_STATES = (
    Patch(
        "accelerate:Accelerator",
        "save_state",
        _save_state,
        reason="It writes weights without a configuration.",
        after="accelerate.accelerator",
    ),
    Patch(
        "accelerate.accelerator",
        "load_accelerator_state",
        _load_state,
        reason="Weights that were trained under other maps are not brought back into a model.",
        after="accelerate.accelerator",
    ),
)
