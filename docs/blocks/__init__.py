"""Generated text: one module per topic here, and ``report.py`` of every recipe; docs/generate.py finds them all."""

from importlib import import_module
from pkgutil import iter_modules

from recipes.lib.blocks import BLOCKS, ROOT

for module in iter_modules(__path__):
    import_module(f".{module.name}", __name__)
for report in sorted((ROOT / "recipes").glob("*/report.py")):
    import_module(f"recipes.{report.parent.name}.report")

__all__ = ["BLOCKS", "ROOT"]
