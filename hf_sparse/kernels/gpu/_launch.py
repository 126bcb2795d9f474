"""What every launch needs: the device a kernel runs on, and the constants that choose a compiled variant."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def on_device_of(x: Tensor) -> AbstractContextManager:
    """Triton launches on the current device: make it that of ``x``."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def unit(x: Tensor) -> Tensor:
    """x with its last axis side by side in memory, as the kernels read it."""
    return x if x.stride(-1) == 1 else x.contiguous()


def whole(exponent: float) -> int:
    """``EXPONENT`` of the kernels: the exponent where powers are products, else 0."""
    return int(exponent) if exponent in (1, 2, 3, 4) else 0
