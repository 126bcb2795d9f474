"""The linear layer in front of a loss, a tile of logits at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LinearHead:
    """``z = softcap(scale (h W^T + b))``, ``softcap(x) = c tanh(x / c)``; one row of W a class.

    Attributes:
        weight: W (V, D).
        bias: b (V,), or None.
        scale: factor on the logits.
        softcap: the bound c on their size, or None for none.
    """

    weight: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None

    def logits(self, hidden: Tensor, columns: slice, out: Tensor) -> Tensor:
        """Logits of the classes ``columns`` for ``hidden`` (n, D), written over the start of the flat ``out``."""
        weight = self.weight[columns]
        z = out[: len(hidden) * len(weight)].view(len(hidden), len(weight))
        if self.bias is None:
            torch.mm(hidden, weight.t(), out=z)
        else:
            torch.addmm(self.bias[columns], hidden, weight.t(), out=z)
        if self.scale != 1:
            z.mul_(self.scale)
        if self.softcap is not None:
            z.div_(self.softcap).tanh_().mul_(self.softcap)
        return z

    def chain(self, values: Tensor, z: Tensor) -> Tensor:
        """A derivative by the logits ``z`` turned into the derivative by ``h W^T + b``, elementwise."""
        if self.softcap is not None:
            values = values * (1 - (z / self.softcap).square())
        return values if self.scale == 1 else values * self.scale
