"""Sources, flags and names of the compiled C++ kernel.

Only the standard library is used here: ``hatch_build.py`` runs this file alone when a wheel is built with kernels.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "cpp"
SOURCES = tuple(sorted(FOLDER.glob("*.cpp")))
# Libraries that a wheel brings; a checkout has none.
PREBUILT = Path(__file__).parent / "prebuilt"
# None of these lets the compiler assume that there are no NaNs or infinities.
MATHS = ("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-pthread", "-Wno-psabi", *MATHS)
# By the capability that torch reports and computes with (ATEN_CPU_CAPABILITY lowers it).
INSTRUCTIONS = {
    "AVX512": ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mavx2", "-mfma"),
    "AVX2": ("-mavx2", "-mfma", "-mf16c"),
}


def flags(capability: str) -> tuple[str, ...]:
    """Compiler flags for a capability of the CPU; for any CPU of its kind where it is not listed above."""
    return (*FLAGS, *INSTRUCTIONS.get(capability, ()))


def key_of(capability: str, *system: str, machine: str = "") -> str:
    """A hash of the sources, the flags and the machine, this one if none is named; ``system`` says more of it."""
    sources = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*pp")))
    made_for = (sys.platform, machine or platform.machine(), *system)
    return hashlib.sha256(sources + repr((flags(capability), made_for)).encode()).hexdigest()[:16]


def content_hash(content: bytes) -> str:
    """The part of a library's name that tells whether its content is still what was built."""
    return hashlib.sha256(content).hexdigest()[:32]


def library_name(key: str, content: bytes) -> str:
    """The name of a library: its key, and the hash of its content."""
    return f"entmax-{key}-{content_hash(content)}.so"


def target_of(compiler: list[str]) -> str:
    """The kind of machine that a compiler compiles for, as ``platform.machine()`` calls it there."""
    said = subprocess.run([*compiler, "-dumpmachine"], check=True, capture_output=True, text=True).stdout
    return said.split("-")[0]


class CompilerFailed(Exception):
    """Says which compiler, and what it said."""


def compile_library(compiler: list[str], capability: str, path: Path) -> None:
    """Compile the library of a capability into ``path``, as many sources at a time as there are cores.

    Raises:
        CompilerFailed: on one of the sources, or at the end.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as apart:

        def run(step: str, *arguments: str) -> None:
            words = [*compiler, *flags(capability), *arguments]
            ran = subprocess.run(words, cwd=apart, capture_output=True, text=True, errors="replace", check=False)
            if ran.returncode != 0:
                raise CompilerFailed(f"{compiler[0]} failed on {step}: {ran.stderr.strip()[-500:]}")

        objects = [f"{source.stem}.o" for source in SOURCES]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(lambda source, made: run(source.name, "-c", str(source), "-o", made), SOURCES, objects))
        run("the library", "-shared", *objects, "-o", str(path.absolute()))


def prebuild(compiler: list[str], folder: Path) -> list[Path]:
    """Compile the libraries of a wheel into ``folder``: one for each capability of CPUs like the compiler's target.

    Raises:
        CompilerFailed: see ``compile_library``.
    """
    machine = target_of(compiler)
    built = []
    for capability in (*(INSTRUCTIONS if machine == "x86_64" else ()), "DEFAULT"):
        with tempfile.TemporaryDirectory(dir=folder) as apart:
            path = Path(apart, "library.so")
            compile_library(compiler, capability, path)
            name = library_name(key_of(capability, machine=machine), path.read_bytes())
            built.append(path.rename(folder / name))
    return built
