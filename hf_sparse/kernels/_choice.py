"""Which implementation computes: the C++ kernel, or torch, which is the specification."""

from __future__ import annotations

import torch
from torch import Tensor

from ._library import available, library

IMPLS = ("auto", "cpp", "torch")
# Outside, float32 sums of powers are too coarse (below), or there is no norm for Newton's method (above).
LOWEST_ALPHA, HIGHEST_ALPHA = 1.1, 2.0
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# From this many scores on, "auto" compiles the kernel if that has not been done: two seconds, once a machine.
BUILD_FROM = 1 << 20


def chosen(impl: str, z: Tensor, alpha: float | Tensor | None = None) -> str:
    """The implementation that computes the scores ``z``: ``"cpp"`` or ``"torch"``.

    Args:
        impl: ``"cpp"`` or ``"torch"``, which are taken as they are, or ``"auto"``: the kernel wherever it can be used,
            is built already or is worth building (a million scores or more), and ``HF_SPARSE_CPP=0`` is not set.
        z: scores; only dtype, device and size are looked at.
        alpha: of entmax; None where it does not matter.

    Raises:
        ValueError: an unknown ``impl``; or ``"cpp"`` for scores or an alpha that the kernel does not take.
        KernelUnavailable: ``"cpp"`` where the kernel cannot be built.

    >>> chosen("torch", torch.zeros(2, 3))
    'torch'
    """
    if impl == "torch":
        return impl
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(map(repr, IMPLS))}, was {impl!r}")
    problem = _problem(z, alpha)
    if impl == "auto":
        return "cpp" if problem is None and available(build=z.numel() >= BUILD_FROM) else "torch"
    if problem is not None:
        raise ValueError(f'impl="cpp" {problem}; use impl="auto" or impl="torch"')
    library()
    return "cpp"


def _problem(z: Tensor, alpha: float | Tensor | None) -> str | None:
    """Why the kernel cannot take these scores, or None."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return "cannot be traced or compiled"
    if z.device.type != "cpu":
        return f"takes scores on the CPU, were on {z.device}"
    if type(z) not in (Tensor, torch.nn.Parameter):
        return f"takes plain tensors, was {type(z).__name__}"
    if z.dtype not in DTYPES:
        return f"takes scores of {', '.join(map(str, DTYPES))}, were {z.dtype}"
    if torch.is_tensor(alpha):
        return "takes one number for alpha, was a tensor"
    if alpha is not None and not LOWEST_ALPHA <= alpha <= HIGHEST_ALPHA:
        return f"takes alpha in [{LOWEST_ALPHA}, {HIGHEST_ALPHA}], was {alpha}"
    return None
