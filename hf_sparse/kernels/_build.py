"""Compile the C++ kernel for this machine, once: a shared library in the user's cache folder, loaded by ctypes."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import shlex
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from ._cache import KernelUnavailable, cache_folder, keep, library_problem, own_folder, stored
from ._recipe import PREBUILT, CompilerFailed, compile_library, content_hash, key_of

logger = logging.getLogger(__name__)


class KernelNotOffered(KernelUnavailable):
    """Nobody expects the kernel here: it is turned off, or there is nothing to build it with."""


def _capability() -> str:
    return torch.backends.cpu.get_cpu_capability()


def library_key() -> str:
    """The key of what is built here; it depends on the C library too, with which a compiler links."""
    return key_of(_capability(), *platform.libc_ver())


def prebuilt() -> Path | None:
    """The library that came with the package for this CPU, or None."""
    found = stored(PREBUILT, key_of(_capability()))
    return next((path for path in found if path.name.endswith(f"-{content_hash(path.read_bytes())}.so")), None)


def is_built() -> bool:
    """Whether the package or the cache folder holds a file that claims to be the library; looks at its name alone."""
    try:
        if stored(PREBUILT, key_of(_capability())):
            return True
        return sys.platform != "win32" and bool(stored(cache_folder(), library_key()))
    except (KernelUnavailable, OSError):
        return False


def compiler() -> list[str]:
    """The command of a C++ compiler: ``$CXX`` if it is installed, else the first of g++, clang++ and c++ that is.

    Raises:
        KernelNotOffered: there is none.
        KernelUnavailable: ``$CXX`` cannot be read as a command.
    """
    for command in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise KernelUnavailable(f"CXX must be a command, was {command!r}: {error}") from error
        if words and shutil.which(words[0]):
            return words
    raise KernelNotOffered("no C++ compiler was found: install g++ or clang++, or name one in CXX")


def build() -> Path:
    """The library, compiled unless it was before. Processes that build at the same time end with the same file.

    Raises:
        KernelNotOffered: no compiler.
        KernelUnavailable: a compiler error; or a folder that cannot be written, or that others can write to.

    Warns:
        RuntimeWarning: a file in the library's place was not what was built, and was replaced.
    """
    if sys.platform == "win32":
        raise KernelNotOffered("the C++ kernel is not built on Windows")
    try:
        folder, key = own_folder(), library_key()
        found = {path: library_problem(path) for path in stored(folder, key)}
        for path, problem in found.items():
            if problem is None:
                return path
        return _rebuilt(folder, key, found) if found else _compiled(folder, key)
    except OSError as error:
        raise KernelUnavailable(f"the C++ kernel could not be built in {cache_folder()}: {error}") from error


def _rebuilt(folder: Path, key: str, damaged: dict[Path, str | None]) -> Path:
    """The library, compiled in the place of files that are not it."""
    said = "; ".join(f"{path} {problem}" for path, problem in damaged.items())
    try:
        built = _compiled(folder, key)
    except (KernelUnavailable, OSError) as error:
        raise KernelUnavailable(f"{said}; it could not be built again: {error}") from error
    for path in damaged.keys() - {built}:
        with contextlib.suppress(OSError):  # another process was faster
            path.unlink()
    warnings.warn(f"the C++ kernel was built again: {said}", RuntimeWarning, stacklevel=2)
    return built


def _compiled(folder: Path, key: str) -> Path:
    """The library, compiled now."""
    command = compiler()
    handle, name = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    try:
        logger.warning("%s compiles the kernel of hf_sparse, once; HF_SPARSE_CPP=0 does without it", command[0])
        compile_library(command, _capability(), Path(name))
        return keep(Path(name), key)
    except CompilerFailed as error:
        raise KernelUnavailable(str(error)) from error
    finally:
        Path(name).unlink(missing_ok=True)
