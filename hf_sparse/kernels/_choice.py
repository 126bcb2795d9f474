"""Dispatch of rows to the Triton kernels, the C++ kernel, or torch, which is the specification."""

from __future__ import annotations

import torch
from torch import Tensor

from ..tracing import in_graph
from ._library import available, library
from ._limits import DTYPES, HIGHEST_ALPHA, LOWEST_ALPHA, LOWEST_CPP_ALPHA
from ._self_check import triton_is_automatic
from ._triton_device import require_triton

ROW_IMPLS = ("auto", "cpp", "torch", "triton")
# From this many scores on, "auto" compiles the C++ kernel where that is yet to be done: up to half a minute, once.
BUILD_FROM = 1 << 20


def chosen(impl: str, z: Tensor, alpha: float | Tensor | None = None) -> str:
    """The implementation that maps the scores ``z``: ``"cpp"``, ``"torch"`` or ``"triton"``.

    Args:
        impl: ``"torch"``, ``"cpp"`` or ``"triton"``, returned as they are, or ``"auto"``. On a GPU that is Triton
            where it can run and passes its check (``triton_is_automatic``); on the CPU the C++ kernel where it can run
            and is built or worth building (a million scores or more), unless ``HF_SPARSE_CPP=0`` is set. Else torch.
        z: scores; only type, dtype, device and size matter.
        alpha: of entmax; None where it does not matter.

    Raises:
        ValueError: an unknown ``impl``; or ``"cpp"`` or ``"triton"`` for scores or an alpha that it does not take.
        KernelUnavailable: ``"cpp"`` where the kernel cannot be built, ``"triton"`` where Triton cannot be used.

    >>> chosen("torch", torch.zeros(2, 3))
    'torch'
    """
    if impl == "torch":
        return impl
    if impl not in ROW_IMPLS:
        raise ValueError(f"impl must be one of {', '.join(map(repr, ROW_IMPLS))}, was {impl!r}")
    if impl == "auto":
        impl = "cpp" if z.device.type == "cpu" else "triton"
        if _row_problem(impl, z, alpha) is not None:
            return "torch"
        on_cpu = impl == "cpp"
        usable = available(build=z.numel() >= BUILD_FROM) if on_cpu else triton_is_automatic("rows", z.device)
        return impl if usable else "torch"
    problem = _row_problem(impl, z, alpha)
    if problem is not None:
        raise ValueError(f'impl="{impl}" {problem}; use impl="auto" or impl="torch"')
    if impl == "cpp":
        library()
    else:
        require_triton(z.device)
    return impl


def _row_problem(impl: str, z: Tensor, alpha: float | Tensor | None) -> str | None:
    """Why a kernel cannot take these scores, or None."""
    return (_cpp_problem(z) if impl == "cpp" else None) or _type_problem(z) or _alpha_problem(impl, alpha)


def _cpp_problem(z: Tensor) -> str | None:
    if in_graph():
        return "cannot be traced or compiled"
    return None if z.device.type == "cpu" else f"takes scores on the CPU, were on {z.device}"


def _type_problem(z: Tensor) -> str | None:
    if type(z) not in (Tensor, torch.nn.Parameter):
        return f"takes plain tensors, was {type(z).__name__}"
    return None if z.dtype in DTYPES else f"takes scores of {', '.join(map(str, DTYPES))}, were {z.dtype}"


def _alpha_problem(impl: str, alpha: float | Tensor | None) -> str | None:
    lowest = LOWEST_CPP_ALPHA if impl == "cpp" else LOWEST_ALPHA
    if torch.is_tensor(alpha):
        return "takes one number for alpha, was a tensor"
    if alpha is None or lowest <= alpha <= HIGHEST_ALPHA:
        return None
    return f"takes alpha in [{lowest}, {HIGHEST_ALPHA}], was {alpha}"
