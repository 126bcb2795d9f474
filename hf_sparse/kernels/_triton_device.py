"""Devices that the Triton kernels run on."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch

from ._cache import KernelUnavailable

# The oldest GPUs that the kernels are compiled for in the tests: A100, RTX 30.
_OLDEST = (8, 0)


@torch.compiler.assume_constant_result
def triton_problem(device: torch.device) -> str | None:
    """Why Triton kernels cannot run on ``device``, or None; a constant to a compiler, which cannot ask a device.

    On the CPU they run in Triton's interpreter, where ``TRITON_INTERPRET=1`` asks for it: for tests.
    """
    if os.environ.get("HF_SPARSE_TRITON") == "0":
        return "the environment variable HF_SPARSE_TRITON=0 turns the Triton kernels off"
    if find_spec("triton") is None:
        return "triton is not installed: pip install 'hf_sparse[gpu]'"
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


@torch.compiler.assume_constant_result
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block may have on a GPU; a constant to a compiler."""
    # torch's annotations leave the property out.
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin")  # noqa: B009


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
