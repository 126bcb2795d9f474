"""Losses of the candidates, and logits like those of a trained model."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor

from hf_sparse.losses import (
    alpha_relu_loss,
    entmax15_loss,
    linear_alpha_relu_loss,
    linear_entmax_loss,
    sparsemax_loss,
)

from ._report import DEVICE, DTYPE

LOSSES: dict[str, Callable[..., Tensor]] = {
    "entmax15 loss": entmax15_loss,
    "sparsemax loss": sparsemax_loss,
    "alpha-ReLU loss": lambda z, y, **options: alpha_relu_loss(z, y, 1.5, 3.0, **options),
}


def fused_loss(loss: Callable[..., Tensor], *settings: float) -> Callable[..., Tensor]:
    return lambda hidden, weight, y, **options: loss(hidden, weight, y, *settings, **options)


FUSED: dict[str, Callable[..., Tensor]] = {
    "linear entmax15 loss": fused_loss(linear_entmax_loss, 1.5),
    "linear sparsemax loss": fused_loss(linear_entmax_loss, 2.0),
    "linear alpha-ReLU loss": fused_loss(linear_alpha_relu_loss, 1.5, 3.0),
}


def two_steps(loss: Callable[..., Tensor], y: Tensor) -> Callable[..., Tensor]:
    """The loss of a linear layer whose logits are rounded as the layer rounds them, and nothing else is."""

    def step(hidden: Tensor, weight: Tensor) -> Tensor:
        z = hidden @ weight.T
        with torch.no_grad():
            rounded = (hidden.to(DTYPE) @ weight.to(DTYPE).T).to(z.dtype)
        return loss(z + (rounded - z).detach(), y, impl="torch")

    return step


def liger(hidden: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    found = module.LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, y)
    return found[0] if isinstance(found, tuple) else found


def trained_like(num_rows: int, vocabulary: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weights and targets whose logits have standard deviation 2.5, the target's being 6 higher."""
    generator = torch.Generator(DEVICE).manual_seed(1)
    weight = torch.randn(vocabulary, dim, generator=generator, device=DEVICE) * dim**-0.5
    y = torch.randint(vocabulary, (num_rows,), generator=generator, device=DEVICE)
    hidden = weight[y] * 6 + torch.randn(num_rows, dim, generator=generator, device=DEVICE) * 2.5
    return hidden.to(DTYPE), weight.to(DTYPE), y
