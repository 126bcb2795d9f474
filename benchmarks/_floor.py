"""What no loss or map with a dense gradient, made of torch's operations, can go below: reading its scores once and
writing zeros once for each dense result. Only a kernel that writes past the caches can."""

from __future__ import annotations

import torch
from torch import Tensor

NAME = "floor: one read, zeros written"


class _ReadOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z: Tensor) -> Tensor:
        ctx.like = z
        return z.amax(-1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return torch.zeros_like(ctx.like)


class _ReadOnceWriteOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z: Tensor) -> Tensor:
        z.amax(-1)
        return torch.zeros_like(z)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


def loss_floor(z: Tensor, y: Tensor) -> Tensor:
    """A scalar after one read of ``z``, whose backward writes zeros."""
    return _ReadOnce.apply(z).sum()


def map_floor(z: Tensor) -> Tensor:
    """Zeros after one read of ``z``, whose backward writes zeros."""
    return _ReadOnceWriteOnce.apply(z)
