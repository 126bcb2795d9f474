"""The compiled C++ kernel in this process: loaded at most once, and never at import."""

from __future__ import annotations

import ctypes
import os
from functools import cache

from ._build import KernelUnavailable, build, library_path

_POINTER, _INT, _LONG, _DOUBLE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_double
SIGNATURES = {
    "hf_sparse_use_team": (_POINTER,),
    "hf_sparse_entmax_supports": (_POINTER, _INT, _LONG, _LONG, _DOUBLE, _DOUBLE, _LONG, _INT, *[_POINTER] * 3),
    "hf_sparse_relu_supports": (_POINTER, _INT, _LONG, _LONG, *[_DOUBLE] * 3, _LONG, _INT, *[_POINTER] * 2),
    "hf_sparse_take": (_POINTER, _LONG, _POINTER, _POINTER),
    "hf_sparse_write": (_POINTER, _POINTER, _LONG, *[_POINTER] * 3, _INT, _LONG, _LONG, _INT),
    "hf_sparse_map": (_POINTER, _POINTER, _INT, _LONG, _LONG, _DOUBLE, _DOUBLE, _INT),
    "hf_sparse_weights": (_POINTER, _POINTER, _LONG, _LONG, _DOUBLE, _DOUBLE, _INT),
    "hf_sparse_product": (_POINTER, _POINTER, _POINTER, _LONG, _LONG, _DOUBLE, _INT),
}


@cache
def _loaded() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    if os.environ.get("HF_SPARSE_CPP") == "0":
        return "the environment variable HF_SPARSE_CPP=0 turns the C++ kernel off"
    try:
        kernel = ctypes.CDLL(str(build()))
    except KernelUnavailable as error:
        return str(error)
    except OSError as error:
        return f"the compiled kernel does not load: {error}"
    for name, arguments in SIGNATURES.items():
        function = getattr(kernel, name)
        function.argtypes, function.restype = arguments, _POINTER if name.endswith("_supports") else None
    # Reuse torch's OpenMP pool; a second pool would contend with its threads, which spin for milliseconds when idle.
    team = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    kernel.hf_sparse_use_team(ctypes.cast(team, _POINTER) if team else None)
    return kernel


@cache
def _built_before() -> bool:
    """Whether the library existed when this process first asked."""
    return os.environ.get("HF_SPARSE_CPP") != "0" and library_path().exists()


def library() -> ctypes.CDLL:
    """The kernel, built if need be (about two seconds, once per machine).

    Raises:
        KernelUnavailable: it cannot be built or loaded, or ``HF_SPARSE_CPP=0`` forbids it.
    """
    found = _loaded()
    if isinstance(found, str):
        raise KernelUnavailable(found)
    return found


def available(build: bool) -> bool:
    """Whether the kernel can be used; ``build`` allows compiling it, which takes two seconds."""
    if not build and not _loaded.cache_info().currsize and not _built_before():
        return False
    return not isinstance(_loaded(), str)
