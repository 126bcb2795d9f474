"""Logits of the head that are kept, as many as there is room for, and what all of them say about the support."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..functional.newton import exponent_of
from ._batches import Answer

# Logits that are kept: 128 MiB in float32.
_KEPT_LOGITS = 2**25


@dataclass
class HeadRows:
    """A sample of logits, evenly spaced in every batch.

    Attributes:
        num_batches: how many there will be at most.
        parts: answers, cut to the sample.
    """

    num_batches: int
    parts: list[Answer] = field(default_factory=list)

    def add(self, given: Answer) -> None:
        """Keep as many rows of a batch as there is room for."""
        rows = given.rows
        room = max(1, _KEPT_LOGITS // (self.num_batches * rows.shape[-1]))
        spaced = torch.linspace(0, len(rows) - 1, min(room, len(rows)), dtype=torch.float32, device=rows.device).long()
        target = None if given.target is None else given.target[spaced]
        self.parts.append(replace(given, rows=rows[spaced], target=target))

    @property
    def logits(self) -> Tensor:
        """The kept logits (N, V).

        Raises:
            ValueError: there are none.
        """
        rows = torch.cat([part.rows for part in self.parts])
        if not len(rows):
            raise ValueError(
                "no position counts in the batches that the head is fitted on, all but every fourth from the last: "
                "their labels are ignored, or they are padding; shuffle the rows, or give more batches"
            )
        return rows

    @property
    def targets(self) -> Tensor:
        """Their targets (N,), where there are labels."""
        return torch.cat([part.target for part in self.parts if part.target is not None])


def entry_temperature(logits: Tensor, target: Tensor, alpha: float) -> Tensor:
    """The temperature above which a class is in the support of alpha-entmax.

    ``y`` is in the support of ``entmax(z / T)`` exactly where ``sum_j [(alpha - 1) (z_j - z_y) / T]_+^(1/(alpha-1))``
    is below 1, which is ``T > (alpha - 1) ||(z - z_y)_+||`` in the norm of order ``1 / (alpha - 1)``.

    Args:
        logits: raw scores (N, V).
        target: classes (N,).
        alpha: above 1.

    Returns:
        Temperatures (N,), float64; 0 for the likeliest class.

    Source: Campos et al. 2025, Sparse Activations as Conformal Predictors.

    >>> entry_temperature(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([1]), 2.0)
    tensor([2.], dtype=torch.float64)
    """
    order = exponent_of(alpha)
    own = logits.gather(-1, target[:, None])
    row, column = (logits > own).nonzero(as_tuple=True)  # few: the classes likelier than the one observed
    above = (logits[row, column] - own[row, 0]).double()
    largest = (logits.amax(-1) - own[:, 0]).double()
    # Divided by the largest: powers of up to 1 / (alpha - 1) = 50 would overflow.
    shares = (above / largest[row]).pow(order)
    mass = torch.zeros_like(largest).index_add(0, row, shares)
    return (alpha - 1) * largest * mass.pow(1 / order)
