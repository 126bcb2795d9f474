"""What the folder of an adapter says of the sparse model that the adapter was trained in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..fertility.source import save_source

ADAPTER_SETTINGS = "hf_sparse.json"


def save_adapter_settings(model: Any, folder: Path) -> None:
    """Write the settings of ``model``, which is sparse, into ``folder`` if it holds an adapter without its base."""
    if (folder / "adapter_config.json").exists():
        settings = json.dumps(model._sparse_config.to_dict(), indent=2)
        (folder / ADAPTER_SETTINGS).write_text(settings + "\n", encoding="utf-8")
        save_source(model, folder)
