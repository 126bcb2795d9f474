"""Exact sparse alternatives to softmax for Hugging Face Transformers models.

Importing this package teaches Transformers to bring sparse checkpoints back sparse; ``hf_sparse.hooks`` lists all it
changes there.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import config, hub, model
from ._version import __version__ as __version__
from .config import *
from .hooks import install
from .hub import *
from .model import *

if TYPE_CHECKING:
    from .conversion import *
    from .fertility import *
    from .generation import *
    from .training import *
    from .viz import *

# Imported when one of their names is first asked for: Trainer alone takes longer to import than all the rest.
_ON_FIRST_USE = ("fertility", "generation", "conversion", "viz", "training")

install()


def _exported() -> list[str]:
    rooms = [config, hub, model, *(import_module(f".{room}", __name__) for room in _ON_FIRST_USE)]
    return sorted({"__version__", *(name for room in rooms for name in room.__all__)})


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _exported()
    if name in _ON_FIRST_USE:
        return import_module(f".{name}", __name__)
    for room in _ON_FIRST_USE if not name.startswith("_") else ():
        module = import_module(f".{room}", __name__)
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_exported()})
