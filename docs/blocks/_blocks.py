"""The blocks of generated text, by name, and where their figures lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BLOCKS: dict[str, Callable[[], str]] = {}


def block(make: Callable[[], str]) -> Callable[[], str]:
    """Fill blocks of the function's name with what it returns."""
    BLOCKS[make.__name__] = make
    return make


def read(path: str) -> Any:
    """A committed result, by its path from the root of the repository."""
    return json.loads((ROOT / path).read_text(encoding="utf-8"))
