"""Arguments of every launch: the device, the layout of tensors, and the constants that choose a compiled variant."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
from torch import Tensor


def on_device_of(x: Tensor) -> AbstractContextManager:
    """Make the device of ``x`` the current one, on which Triton launches."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def unit(x: Tensor) -> Tensor:
    """x with its last axis side by side in memory, as the kernels read it."""
    return x if x.stride(-1) == 1 else x.contiguous()


def whole(exponent: float) -> int:
    """``EXPONENT`` of the kernels: the exponent where powers are products, else 0."""
    return int(exponent) if exponent in (1, 2, 3, 4) else 0


def padded(dim: int) -> int:
    """Columns of a tile that holds ``dim``: a power of two, and at least the 16 that a product takes."""
    return max(16, triton.next_power_of_2(dim))
