"""Sources, flags and names of the compiled C++ kernel.

Only the standard library is used here: ``hatch_build.py`` runs this file alone when a wheel is built with kernels.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "cpp" / "entmax.cpp"
# Libraries that a wheel brings; a checkout has none.
PREBUILT = Path(__file__).parent / "prebuilt"
# None of these lets the compiler assume that there are no NaNs or infinities.
MATHS = ("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-pthread", "-Wno-psabi", *MATHS)
# By the capability that torch reports and computes with (ATEN_CPU_CAPABILITY lowers it).
INSTRUCTIONS = {
    "AVX512": ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mavx2", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}


def flags(capability: str) -> tuple[str, ...]:
    """Compiler flags for a capability of the CPU; for any CPU of its kind where it is not listed above."""
    return (*FLAGS, *INSTRUCTIONS.get(capability, ()))


def key_of(capability: str, *system: str) -> str:
    """A hash of the sources, the flags and the kind of machine; ``system`` says more of the machine."""
    sources = b"".join(path.read_bytes() for path in sorted(SOURCE.parent.glob("*pp")))
    machine = (sys.platform, platform.machine(), *system)
    return hashlib.sha256(sources + repr((flags(capability), machine)).encode()).hexdigest()[:16]


def content_hash(content: bytes) -> str:
    """The part of a library's name that tells whether its content is still what was built."""
    return hashlib.sha256(content).hexdigest()[:32]


def library_name(key: str, content: bytes) -> str:
    """The name of a library: its key, and the hash of its content."""
    return f"entmax-{key}-{content_hash(content)}.so"


def prebuild(compiler: list[str], folder: Path) -> list[Path]:
    """Compile the libraries of a wheel into ``folder``: one for each capability of this kind of CPU.

    Raises:
        subprocess.CalledProcessError: the compiler failed; it has said why.
    """
    on_x86 = platform.machine() in ("x86_64", "AMD64")
    built = []
    for capability in (*(INSTRUCTIONS if on_x86 else ()), "DEFAULT"):
        with tempfile.TemporaryDirectory(dir=folder) as apart:
            path = Path(apart, "library.so")
            subprocess.run([*compiler, *flags(capability), str(SOURCE), "-o", str(path)], check=True)
            name = library_name(key_of(capability), path.read_bytes())
            built.append(path.rename(folder / name))
    return built
