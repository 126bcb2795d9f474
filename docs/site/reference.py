"""API pages: one for each room of the package that has public names, all of them in its docstrings' words."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

from docstrings import as_markdown

import hf_sparse
from recipes.lib import markdown


def reference_pages() -> dict[str, str]:
    """Pages by path, in the order of the names of their rooms; ``api/index.md`` lists them."""
    pages = {f"api/{room.__name__}.md": room_page(room) for room in rooms()}
    listed = [[f"[{room.__name__}]({room.__name__}.md)", first_line(room)] for room in rooms()]
    index = f"# API\n\nEvery public name, by the room it lives in.\n\n{markdown.table(['room', ''], listed)}\n"
    return {"api/index.md": index} | pages


def rooms() -> list[ModuleType]:
    """Every module with public names, without those that are private or belong to kernels."""
    names = [info.name for info in pkgutil.walk_packages(hf_sparse.__path__, "hf_sparse.")]
    shown = [name for name in names if not any(part.startswith("_") or part == "kernels" for part in name.split("."))]
    return [module for module in map(importlib.import_module, shown) if getattr(module, "__all__", ())]


def room_page(room: ModuleType) -> str:
    """One entry for each public name; numbers and tables of a room are listed with their values."""
    entries, values = [], []
    for name in room.__all__:
        value = getattr(room, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            entries.append(f"::: {room.__name__}.{name}\n")
        else:
            values.append(f"- `{name}`: `{type(value).__name__}`")
    listed = "## Constants\n\n" + "\n".join(values) + "\n" if values else ""
    return "\n".join([f"# {room.__name__}\n", as_markdown(f"{inspect.getdoc(room)}\n"), *entries, listed])


def first_line(room: ModuleType) -> str:
    """What the room is for."""
    return (inspect.getdoc(room) or "").splitlines()[0]
