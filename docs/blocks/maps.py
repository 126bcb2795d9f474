"""The table of all maps, from their records and the first sentences of their docstrings."""

from __future__ import annotations

import inspect

from hf_sparse.functional import MAPS, SparseMap
from recipes.lib import markdown
from recipes.lib.blocks import block


@block
def maps() -> str:
    """Every registered map: its formula, its settings, where it fits."""
    rows = []
    for name, known in sorted(MAPS.items()):
        settings = "<br>".join(f"`{key}` {_default(setting.default)}" for key, setting in known.settings.items())
        rows.append([f"`{name}`", _formula(known), settings, _attention(known), _head(known)])
    return markdown.table(["map", "weights", "settings", "attention", "head"], rows)


def _default(value: float | str | bool) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def _formula(known: SparseMap) -> str:
    """The first sentence of the docstring, which is the mathematics."""
    text = " ".join(str(inspect.getdoc(known.function)).split("\n\n")[0].split())
    return text.replace("``", "`")


def _attention(known: SparseMap) -> str:
    if not known.any_scores:
        return "no"
    if known.bounds is not None:
        return "cross-attention and decoders"
    return "yes" if known.normalized else "yes, any sum"


def _head(known: SparseMap) -> str:
    return "no" if known.regularizer is None else "yes"
