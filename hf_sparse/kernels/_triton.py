"""The Triton kernels in this process: whether they can be used, and the way to them that imports triton only then."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

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
