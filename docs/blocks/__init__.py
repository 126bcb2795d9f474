"""Generated text, one module per topic; docs/generate.py finds them all."""

from importlib import import_module
from pkgutil import iter_modules

from ._blocks import BLOCKS, ROOT
from ._cards import CARDS

for module in iter_modules(__path__):
    import_module(f".{module.name}", __name__)

__all__ = ["BLOCKS", "CARDS", "ROOT"]
