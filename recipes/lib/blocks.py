"""Blocks: text of the documentation that is made from committed results by ``python docs/generate.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .records import read_json
from .summary import merged

ROOT = Path(__file__).resolve().parents[2]
BLOCKS: dict[str, Callable[[], str]] = {}


def block(make: Callable[[], str]) -> Callable[[], str]:
    """Register a function that makes the text of the block with its name; two of one name are a mistake."""
    if make.__name__ in BLOCKS:
        raise ValueError(
            f"{make.__module__} has a block {make.__name__}, and {BLOCKS[make.__name__].__module__} has one"
        )
    BLOCKS[make.__name__] = make
    return make


def read(path: str) -> Any:
    """A committed result, given its path from the root of the repository; summaries come with whole records."""
    content = read_json(ROOT / path)
    return content | {"runs": merged(content["shared"], content["runs"])} if "shared" in content else content
