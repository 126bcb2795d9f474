"""Programs that do not import this package, run with it: in them sparse checkpoints load as they are."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path


def program_of(name: str, is_module: bool = False) -> Callable[[], None]:
    """What runs a program in this process as Python would; its arguments are in ``sys.argv``.

    Args:
        name: the path of a script, or a command that a package installed.
        is_module: ``name`` is a module instead, as after ``python -m``.

    Raises:
        ValueError: there is no such program.
        ImportError: a package around the module cannot be imported.
    """
    if is_module:
        if find_spec(name) is None:
            raise ValueError(f"there is no module {name!r}")
        return lambda: _run_module(name)
    if Path(name).is_file():
        return lambda: _run_script(name)
    commands = entry_points(group="console_scripts", name=name)
    if not commands:
        raise ValueError(
            f"{name!r} is neither the path of a script nor a command that a package installed; a module needs -m"
        )
    return lambda: sys.exit(next(iter(commands)).load()())


def _run_module(name: str) -> None:
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_script(path: str) -> None:
    sys.path[0] = str(Path(path).resolve().parent)  # where a script's own modules are
    runpy.run_path(path, run_name="__main__")
