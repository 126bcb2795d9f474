"""One training step's worth of a function: forward and backward."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def loss_step(loss: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], None]:
    """A call that computes ``loss(*inputs)`` and its gradients in every floating-point input."""

    def step() -> None:
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
        loss(*leaves).backward()

    return step


def map_step(function: Callable[[Tensor], Tensor], z: Tensor, upstream: Tensor) -> Callable[[], None]:
    """A call that computes ``function(z)`` and pulls ``upstream`` back through it."""

    def step() -> None:
        leaf = z.detach().requires_grad_()
        function(leaf).backward(upstream)

    return step
