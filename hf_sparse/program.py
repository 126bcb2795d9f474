"""Programs that do not import this package, run with it: in them sparse checkpoints load as they are."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
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
    return lambda: _run_command(next(iter(commands)))


def _run_module(name: str) -> None:
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_script(path: str) -> None:
    _look_first_in(str(Path(path).resolve().parent))
    runpy.run_path(path, run_name="__main__")


def _run_command(command: EntryPoint) -> None:
    _look_first_in()
    sys.exit(command.load()())


def _look_first_in(*folders: str) -> None:
    """Look for modules first where the program does, not in the current folder, as ``python -m hf_sparse`` does."""
    if sys.path[0] == os.getcwd():
        sys.path[:1] = folders
