"""The Triton kernels in this process: whether they can be used, and the way to them that imports triton only then."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ._build import KernelUnavailable

# The oldest GPUs that the kernels are compiled for in the tests: A100, RTX 30.
_OLDEST = (8, 0)


def triton_problem(device: torch.device) -> str | None:
    """Why Triton kernels cannot run on ``device``, or None.

    On the CPU they run in Triton's interpreter, where ``TRITON_INTERPRET=1`` asks for it: for tests.
    """
    if os.environ.get("HF_SPARSE_TRITON") == "0":
        return "the environment variable HF_SPARSE_TRITON=0 turns the Triton kernels off"
    if find_spec("triton") is None:
        return "triton is not installed: pip install hf_sparse[gpu]"
    if device.type == "cpu":
        if os.environ.get("TRITON_INTERPRET") == "1":
            return None
        return "Triton kernels run on NVIDIA GPUs; the scores were on the CPU"
    if device.type != "cuda" or torch.version.hip is not None:
        return f"Triton kernels run on NVIDIA GPUs; the scores were on {device.type}"
    capability = _capability(device)
    if capability < _OLDEST:
        has = ".".join(map(str, capability))
        return f"Triton kernels need a GPU of compute capability 8.0 or more, this one has {has}"
    return None


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def require_triton(device: torch.device) -> None:
    """Do nothing where Triton kernels run on ``device``.

    Raises:
        KernelUnavailable: they do not; the message says why.
    """
    problem = triton_problem(device)
    if problem is not None:
        raise KernelUnavailable(problem)


def triton_weights(z: Tensor, alpha: float, exponent: float) -> Tensor:
    """entmax over the last axis of z, in its dtype; see ``entmax_weights``, whose arguments these are."""
    from .gpu.row_ops import row_weights

    return row_weights(z.detach().reshape(-1, z.shape[-1]), alpha, exponent).view(z.shape)


def triton_jacobian_product(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """``J g = s (g - mean_s g)``, ``s = p^(2 - alpha)`` on the support; p and g (..., V), in the dtype of p."""
    from .gpu.row_ops import row_jacobian_product

    flat = (tensor.detach().reshape(-1, p.shape[-1]) for tensor in (p, grad))
    return row_jacobian_product(*flat, alpha).view(p.shape)


def triton_solve(z: Tensor, alpha: float, exponent: float, tau: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Rows z (N, V) solved, for entmax or for alpha-ReLU with its tau, and kept for ``triton_loss_gradients``.

    Returns:
        conjugate: (N,) float32 ``Omega*(z) - max z``; for alpha-ReLU ``sum u^(alpha / (alpha - 1))``.
        solution: (N, 3) whose first column is ``max z`` for entmax, 0 for a fully masked row.
        peaks: (N, blocks).
    """
    from .gpu.row_ops import solved_rows

    return solved_rows(z.detach(), alpha, exponent, tau)


def triton_loss_gradients(
    z: Tensor,
    solved: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    target: Tensor | None,
    alpha: float,
    exponent: float,
) -> Tensor:
    """``grad (p - y)`` in the dtype of z (N, V): grad (N,), class targets (N,) or None for ``grad p``."""
    from .gpu.row_ops import row_loss_gradients

    return row_loss_gradients(z.detach(), *solved, grad.detach(), target, alpha, exponent)


def triton_listing(num_entries: int, num_chunks: int, device: torch.device) -> Any:
    """Room for ``num_entries`` of the supports of rows that come in chunks; see ``triton_list_support``."""
    from .gpu._support import Listing

    return Listing.empty(num_entries, num_chunks, device)


def triton_list_support(
    z: Tensor,
    listing: Any,
    chunk: int,
    first_row: int,
    most: int,
    alpha: float,
    exponent: float,
    tau: float | None,
    softcap: float | None,
    factor: float,
) -> tuple[Tensor, Tensor]:
    """Solve a chunk of rows z (N, V) and list its support, unless that has more than ``most`` entries.

    Listed are rows, counted from ``first_row``, columns, and ``factor p``, times ``1 - (z / softcap)^2`` where there
    is a softcap.

    Returns:
        conjugate: (N,) float32 as ``triton_solve``.
        top: (N,) the row's maximum for entmax, 0 for a fully masked row and for alpha-ReLU.
    """
    from .gpu._rows import solve
    from .gpu._support import list_support

    solved = solve(z, alpha, exponent, tau, counting=True)
    list_support(z, solved, listing, chunk, first_row, most, alpha, exponent, softcap, factor)
    return solved.conjugate, solved.solution[:, 0]


def triton_multiply(
    row: Tensor, column: Tensor, value: Tensor, table: Tensor, num_rows: int, dtype: torch.dtype
) -> Tensor:
    """A sparse matrix, its entries (M,) in any order, times ``table`` (K, D): (num_rows, D) in ``dtype``."""
    from .gpu._attention import unit
    from .gpu._support import multiply

    return multiply(row, column, value, unit(table), num_rows, dtype)
