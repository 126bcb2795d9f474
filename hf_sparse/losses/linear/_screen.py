"""Rows whose thresholds are found from a product in bfloat16: only scores that can have weight are exact."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...functional import entmax
from ...functional.negentropy import tsallis_negentropy
from ...functional.newton import exponent_of
from ...kernels import RoundedRows, bfloat16_is_fast, list_candidates, round_rows
from ._tiles import LinearHead

# As many rows are multiplied in float32 first, to see whether supports are small.
PROBED_ROWS = 32
# A screen pays off where W is larger than the caches, and rows are many enough to make up for rounding it.
_FEWEST_WEIGHTS, _FEWEST_ROWS = 1 << 22, 256
# Candidates of a row are read one by one. With more than one in so many classes in the support on average, or in one
# row, the product in float32 is as fast.
_MEAN_PART, _LARGEST_PART = 512, 64


class ScreenedRows(NamedTuple):
    """The solution of rows (n, V) on C of their entries.

    Attributes:
        p: (n, C) float64, the weights there.
        columns: (n, C) int64.
        scores: (n, C) float32, ``-inf`` where a row has fewer.
        top: (n,) float64, the row's maximum.
        conjugate: (n,) float64, ``Omega*(z) - max z``.
    """

    p: Tensor
    columns: Tensor
    scores: Tensor
    top: Tensor
    conjugate: Tensor


class RowScreen:
    """A linear layer whose rows are screened, for alpha-entmax.

    Args:
        head: without a softcap.
        rounded: its weights.
        alpha: in (1, 2].
    """

    def __init__(self, head: LinearHead, rounded: RoundedRows, alpha: float) -> None:
        self.head, self.rounded, self.alpha = head, rounded, alpha
        self.bias = None if head.bias is None else (head.bias * head.scale).contiguous()

    @classmethod
    def of(cls, head: LinearHead, support: float, alpha: float) -> RowScreen | None:
        """The screen of a layer, or None where it would not pay.

        Args:
            head: the layer.
            support: mean number of weights that are not zero in the first rows.
            alpha: of entmax, in (1, 2].
        """
        weight = head.weight
        plain = weight.dtype == torch.float32 and weight.is_contiguous() and head.softcap is None
        if not plain or support * _MEAN_PART > len(weight):
            return None
        rounded = round_rows(weight.detach())
        return None if rounded is None else cls(head, rounded, alpha)

    @torch.no_grad()
    def solve(self, hidden: Tensor) -> ScreenedRows | None:
        """The solution of the rows ``hidden`` (n, D); None where too many entries can have weight."""
        h = (hidden if self.head.scale == 1 else hidden * self.head.scale).contiguous()
        most = len(self.head.weight) // _LARGEST_PART
        weight, exponent = self.head.weight.detach(), exponent_of(self.alpha)
        found = list_candidates(h, weight, self.rounded, self.bias, self.alpha, exponent, most)
        if found is None:
            return None
        z = found.scores.double()
        top = z.amax(-1)
        p = entmax(z, self.alpha, impl="torch")
        energy = torch.where(p > 0, p * (z - top[:, None]), 0.0).sum(-1)
        return ScreenedRows(p, found.columns, found.scores, top, energy - tsallis_negentropy(p, self.alpha))

    def golds(self, hidden: Tensor, y: Tensor) -> Tensor:
        """``z_y`` (n,) float64 of rows ``hidden`` (n, D) and their classes (n,)."""
        z = torch.einsum("nd,nd->n", hidden.double(), self.head.weight[y].double()) * self.head.scale
        return z if self.bias is None else z + self.bias[y]


def may_be_screened(head: LinearHead, hidden: Tensor) -> bool:
    """Whether a layer and its inputs (N, D) are large enough, and products in bfloat16 fast enough."""
    return head.weight.numel() >= _FEWEST_WEIGHTS and len(hidden) >= _FEWEST_ROWS and bfloat16_is_fast()
