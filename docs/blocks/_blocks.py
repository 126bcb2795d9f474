"""The registry of generated blocks, and the one loader of result files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BLOCKS: dict[str, Callable[[], str]] = {}


def block(make: Callable[[], str]) -> Callable[[], str]:
    """Register a function that makes the text of the block with its name."""
    BLOCKS[make.__name__] = make
    return make


def read(path: str) -> Any:
    """Load a committed result, by its path from the root of the repository."""
    return json.loads((ROOT / path).read_text(encoding="utf-8"))
