"""Compile the C++ kernel for this machine, once: a shared library in the user's cache folder, loaded by ctypes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from ._cache import KernelUnavailable, cache_folder, keep, library_problem, own_folder, stored

SOURCE = Path(__file__).parent / "cpp" / "entmax.cpp"
# None of these lets the compiler assume that there are no NaNs or infinities.
MATHS = ("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-pthread", "-Wno-psabi", *MATHS)
# By the capability that torch reports and computes with (ATEN_CPU_CAPABILITY lowers it).
INSTRUCTIONS = {
    "AVX512": ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mavx2", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}


class KernelNotOffered(KernelUnavailable):
    """Nobody expects the kernel here: it is turned off, or there is nothing to build it with."""


def flags() -> tuple[str, ...]:
    """Compiler flags for the instruction set of this machine; for the portable one where it is not listed above."""
    return (*FLAGS, *INSTRUCTIONS.get(torch.backends.cpu.get_cpu_capability(), ()))


def library_key() -> str:
    """The name of a build: a hash of its sources, its flags and the kind of machine."""
    machine = (sys.platform, platform.machine(), *platform.libc_ver())
    sources = b"".join(path.read_bytes() for path in sorted(SOURCE.parent.glob("*pp")))
    return hashlib.sha256(sources + repr((flags(), machine)).encode()).hexdigest()[:16]


def is_built() -> bool:
    """Whether the cache folder holds a file that claims to be the library; looks at its name alone."""
    try:
        return sys.platform != "win32" and bool(stored(cache_folder(), library_key()))
    except (KernelUnavailable, OSError):
        return False


def compiler() -> list[str]:
    """The command of a C++ compiler: ``$CXX``, or the first of g++, clang++ and c++ that is installed.

    Raises:
        KernelNotOffered: there is none.
        KernelUnavailable: ``$CXX`` is not a command.
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
        words = [*command, *flags(), str(SOURCE), "-o", name]
        result = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
        if result.returncode != 0:
            raise KernelUnavailable(f"{command[0]} failed on {SOURCE.name}: {result.stderr.strip()[-500:]}")
        return keep(Path(name), key)
    finally:
        Path(name).unlink(missing_ok=True)
