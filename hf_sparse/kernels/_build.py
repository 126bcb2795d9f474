"""Compile the C++ kernel for this machine, once: a shared library in the user's cache folder, loaded by ctypes."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).parent / "cpp" / "entmax.cpp"
# None of these lets the compiler assume that there are no NaNs or infinities.
MATHS = ("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-pthread", "-Wno-psabi", *MATHS)
# By the capability that torch reports and computes with (ATEN_CPU_CAPABILITY lowers it).
INSTRUCTIONS = {
    "AVX512": ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mavx2", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}


class KernelUnavailable(RuntimeError):
    """A compiled kernel, C++ or Triton, cannot be used here; the message names it and says why."""


def flags() -> tuple[str, ...]:
    """Compiler flags for the instruction set of this machine; for the portable one where it is not listed above."""
    return (*FLAGS, *INSTRUCTIONS.get(torch.backends.cpu.get_cpu_capability(), ()))


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/hf_sparse``, by default ``~/.cache/hf_sparse``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hf_sparse"


def library_path() -> Path:
    """The library's file, named by its sources, flags and kind of machine."""
    machine = (sys.platform, platform.machine(), *platform.libc_ver())
    sources = b"".join(path.read_bytes() for path in sorted(SOURCE.parent.glob("*pp")))
    key = hashlib.sha256(sources + repr((flags(), machine)).encode()).hexdigest()[:16]
    return cache_folder() / f"entmax-{key}.so"


def compiler() -> list[str]:
    """The command of a C++ compiler: ``$CXX``, or the first of g++, clang++ and c++ that is installed.

    Raises:
        KernelUnavailable: there is none.
    """
    if sys.platform == "win32":
        raise KernelUnavailable("the C++ kernel is not built on Windows")
    for command in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    raise KernelUnavailable("no C++ compiler was found: install g++ or clang++, or name one in CXX")


def build() -> Path:
    """The library, compiled unless it was before. Processes that build at the same time end with the same file.

    Raises:
        KernelUnavailable: no compiler, a compiler error, or a folder that cannot be written or is another user's.
    """
    path = library_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if hasattr(os, "getuid") and path.parent.stat().st_uid != os.getuid():
            raise KernelUnavailable(f"{path.parent} belongs to another user; set XDG_CACHE_HOME to a folder of yours")
        if path.exists():
            return path
        command = compiler()
        handle, name = tempfile.mkstemp(suffix=".so", dir=path.parent)
        os.close(handle)
        try:
            result = subprocess.run(
                [*command, *flags(), str(SOURCE), "-o", name], capture_output=True, text=True, check=False
            )
            if result.returncode != 0:
                raise KernelUnavailable(f"{command[0]} failed on {SOURCE.name}: {result.stderr.strip()[-500:]}")
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise KernelUnavailable(f"the C++ kernel could not be built in {path.parent}: {error}") from error
    return path
