"""Logits as models produce them: late in training (peaked) and at its start (flat)."""

from __future__ import annotations

import torch
from torch import Tensor


def logits(kind: str, num_rows: int, num_classes: int) -> Tensor:
    """``"trained"``: standard deviation 3 and eight boosted entries a row; else a Gaussian of that deviation."""
    generator = torch.Generator().manual_seed(0)
    if kind != "trained":
        return float(kind) * torch.randn(num_rows, num_classes, generator=generator)
    z = 3 * torch.randn(num_rows, num_classes, generator=generator)
    boosted = torch.randint(num_classes, (num_rows, 8), generator=generator)
    return z.scatter_add_(1, boosted, 8 + 8 * torch.rand(num_rows, 8, generator=generator))


def targets(num_rows: int, num_classes: int) -> Tensor:
    return torch.randint(num_classes, (num_rows,), generator=torch.Generator().manual_seed(1))


def linear_layer(kind: str, num_rows: int, width: int, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weight and targets; ``"trained"`` states lean towards a few classes, mostly the target too.

    ``"mixed"``: so do most, but one in fifty says little, and has weight on many classes.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(num_classes, width, generator=generator) / width**0.5
    y = torch.randint(num_classes, (num_rows,), generator=generator)
    if kind not in ("trained", "mixed"):
        return float(kind) * torch.randn(num_rows, width, generator=generator), weight, y
    hidden = 3 * torch.randn(num_rows, width, generator=generator)
    liked = torch.randint(num_classes, (num_rows, 6), generator=generator)
    liked[:, 0] = torch.where(torch.rand(num_rows, generator=generator) < 0.7, y, liked[:, 0])
    strength = 4 + 8 * torch.rand(num_rows, 6, 1, generator=generator)
    hidden += (weight[liked] * strength).sum(1)
    if kind == "mixed":
        hidden[::50] /= 30
    return hidden, weight, y
