"""The recipes as modules: programs in a folder of their own, which import one another by plain names."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def load(name: str) -> ModuleType:
    """A module of the recipes' folder."""
    sys.path.insert(0, str(RECIPES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(RECIPES))
