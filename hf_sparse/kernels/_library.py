"""The compiled C++ kernel in this process: loaded at most once, and never at import."""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from functools import cache
from pathlib import Path

from ._build import KernelNotOffered, build, is_built, prebuilt
from ._cache import KernelUnavailable

_POINTER, _INT, _LONG, _DOUBLE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_double
SIGNATURES = {
    "hf_sparse_use_team": (_POINTER,),
    "hf_sparse_entmax_supports": (_POINTER, _INT, _LONG, _LONG, _DOUBLE, _DOUBLE, _LONG, _INT, *[_POINTER] * 4),
    "hf_sparse_relu_supports": (_POINTER, _INT, _LONG, _LONG, *[_DOUBLE] * 3, _LONG, _INT, *[_POINTER] * 3),
    "hf_sparse_take": (_POINTER, _LONG, _POINTER, _POINTER),
    "hf_sparse_write": (_POINTER, _POINTER, _LONG, *[_POINTER] * 4, _INT, _LONG, _LONG, _INT),
    "hf_sparse_write_crowded": (*[_POINTER] * 6, _INT, _LONG, _LONG, _DOUBLE, _DOUBLE, _INT),
    "hf_sparse_log_sums": (_POINTER, _INT, _LONG, _LONG, _INT, _POINTER, _POINTER),
    "hf_sparse_write_softmax": (*[_POINTER] * 6, _INT, _LONG, _LONG, _INT),
    "hf_sparse_map": (_POINTER, _POINTER, _INT, _LONG, _LONG, _DOUBLE, _DOUBLE, _INT),
    "hf_sparse_weights": (_POINTER, _POINTER, _INT, _LONG, _LONG, _DOUBLE, _DOUBLE, _INT),
    "hf_sparse_residuals": (*[_POINTER] * 5, _INT, _LONG, _LONG, _DOUBLE, _DOUBLE, _INT),
    "hf_sparse_product": (_POINTER, _POINTER, _POINTER, _INT, _LONG, _LONG, _DOUBLE, _INT),
    "hf_sparse_write_logarithms": (_POINTER, _POINTER, _LONG, _LONG, ctypes.c_float, _INT),
    "hf_sparse_weights_by_run": (_POINTER, _POINTER, _LONG, _POINTER, _LONG, _POINTER, _POINTER, _INT),
    "hf_sparse_product_by_run": (*[_POINTER] * 3, _LONG, _POINTER, _LONG, _POINTER, _INT),
    "hf_sparse_slopes_by_run": (*[_POINTER] * 3, _LONG, _POINTER, _LONG, _POINTER, _INT),
    "hf_sparse_code_rows": (_POINTER, _INT, _LONG, _LONG, _POINTER, _POINTER, _INT, _POINTER),
    "hf_sparse_fingerprint": (_POINTER, _LONG, _INT, _POINTER),
    "hf_sparse_screen": (
        _POINTER,
        _INT,
        *[_POINTER] * 3,
        _LONG,
        _LONG,
        _POINTER,
        _LONG,
        _LONG,
        *[_POINTER] * 4,
        _INT,
        _POINTER,
    ),
    "hf_sparse_refine": (_POINTER, _INT, _POINTER, _LONG, _LONG, _POINTER, _LONG, *[_POINTER] * 3, _INT, _POINTER),
    "hf_sparse_has_tiles": (_POINTER,),
    "hf_sparse_attend": (_POINTER, _INT),
    "hf_sparse_differentiate_attention": (_POINTER, _INT),
    "hf_sparse_attend_few": (_POINTER, _INT),
    "hf_sparse_code_keys": (_POINTER, _LONG, _INT),
    "hf_sparse_attend_to_coded": (_POINTER, _INT),
    "hf_sparse_round_rows": (_POINTER, _LONG, _LONG, *[_POINTER] * 3, _INT, _POINTER),
    "hf_sparse_list_candidates": (*[_POINTER] * 8, *[_LONG] * 4, *[_DOUBLE] * 3, *[_POINTER] * 3, _INT),
}


@cache
def _loaded() -> ctypes.CDLL | KernelUnavailable:
    """The library, or why there is none. While one thread builds it the others wait."""
    with _one_at_a_time:
        return _loaded_once()


_one_at_a_time = threading.Lock()


def _forget_lock() -> None:
    """Have a forked process not wait for a thread that it does not have."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


@cache
def _loaded_once() -> ctypes.CDLL | KernelUnavailable:
    """What ``_loaded`` finds, kept for the threads that waited: each of them has missed the cache before."""
    try:
        if os.environ.get("HF_SPARSE_CPP") == "0":
            raise KernelNotOffered("the environment variable HF_SPARSE_CPP=0 turns the C++ kernel off")
        return _load()
    except KernelUnavailable as error:
        return error


def _load() -> ctypes.CDLL:
    """The library that came with the package where there is one that loads here, else one built here."""
    path = prebuilt()
    if path is None:
        return _opened(build())
    try:
        return _opened(path)
    except KernelUnavailable as error:
        problem = error
    try:
        return _opened(build())
    except KernelUnavailable as error:
        raise KernelUnavailable(f"the package's own: {problem}; one for this machine: {error}") from error


def _opened(path: Path) -> ctypes.CDLL:
    try:
        kernel = ctypes.CDLL(str(path))
        for name, arguments in SIGNATURES.items():
            function = getattr(kernel, name)
            function.argtypes, function.restype = arguments, _POINTER if name.endswith("_supports") else None
    except (OSError, AttributeError) as error:
        raise KernelUnavailable(f"the compiled C++ kernel does not load: {error}") from error
    # Reuse torch's OpenMP pool; a second pool would contend with its threads, which spin for milliseconds when idle.
    team = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    kernel.hf_sparse_use_team(ctypes.cast(team, _POINTER) if team else None)
    return kernel


@cache
def _built_before() -> bool:
    """Whether the library existed when this process first asked."""
    return os.environ.get("HF_SPARSE_CPP") != "0" and is_built()


@cache
def _usable() -> bool:
    """Whether the library loads; where it should and does not, one warning says why."""
    found = _loaded()
    if isinstance(found, KernelUnavailable) and not isinstance(found, KernelNotOffered):
        warnings.warn(
            f"hf_sparse computes in torch, which is slower: {found}. HF_SPARSE_CPP=0 silences this",
            RuntimeWarning,
            stacklevel=2,
        )
    return isinstance(found, ctypes.CDLL)


def library() -> ctypes.CDLL:
    """The kernel, built if need be (up to half a minute, once).

    Raises:
        KernelUnavailable: it cannot be built or loaded, or ``HF_SPARSE_CPP=0`` forbids it.
    """
    found = _loaded()
    if isinstance(found, KernelUnavailable):
        raise KernelUnavailable(str(found))
    return found


def available(build: bool) -> bool:
    """Whether the kernel can be used; ``build`` allows compiling it, which takes half a minute or less."""
    if not build and not _loaded.cache_info().currsize and not _built_before():
        return False
    return _usable()
