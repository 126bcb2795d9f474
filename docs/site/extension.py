"""The extension of griffe, which reads the package for mkdocstrings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from griffe import Extension, Object

sys.path.insert(0, str(Path(__file__).parent))  # griffe runs this file outside its folder

from docstrings import as_markdown


class Docstrings(Extension):
    """Rewrites every docstring that griffe reads."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called once an object and its members are there."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
