"""Rows whose scores come from a product in bfloat16: only those that can have weight are exact."""

from __future__ import annotations

import torch
from torch import Tensor

from ...functional.newton import exponent_of
from ...kernels import Candidates, RoundedRows, bfloat16_is_fast, list_candidates, round_rows
from ._tiles import LinearHead

# As many rows are multiplied in float32 first, to see whether supports are small.
PROBED_ROWS = 32
# A screen pays off where W is larger than the caches, and rows are many enough to make up for rounding it.
_FEWEST_WEIGHTS, _FEWEST_ROWS = 1 << 22, 384
# Candidates of a row are read one by one. With more than one in so many classes in the support on average, or in one
# row, the product in float32 is as fast.
_MEAN_PART, _LARGEST_PART = 512, 64


class RowScreen:
    """A linear layer whose rows are screened.

    Args:
        head: without a softcap.
        rounded: its weights.
        alpha: of entmax or alpha-ReLU.
        tau: the threshold of alpha-ReLU; None for entmax.
    """

    def __init__(self, head: LinearHead, rounded: RoundedRows, alpha: float, tau: float | None) -> None:
        self.head, self.rounded, self.alpha, self.tau = head, rounded, alpha, tau
        self.bias = None if head.bias is None else head.bias * head.scale

    @classmethod
    def of(cls, head: LinearHead, support: float, alpha: float, tau: float | None = None) -> RowScreen | None:
        """The screen of a layer, or None where it would not pay.

        Args:
            head: the layer.
            support: mean number of weights that are not zero in the first rows.
            alpha: of entmax, in (1, 2], or of alpha-ReLU.
            tau: the threshold of alpha-ReLU; None for entmax.
        """
        weight = head.weight
        plain = weight.dtype == torch.float32 and weight.is_contiguous() and head.softcap is None
        if not plain or support * _MEAN_PART > len(weight):
            return None
        rounded = round_rows(weight.detach())
        return None if rounded is None else cls(head, rounded, alpha, tau)

    @torch.no_grad()
    def candidates(self, hidden: Tensor) -> Candidates | None:
        """The scores of rows ``hidden`` (n, D) that can have weight; None where they are too many."""
        h = (hidden if self.head.scale == 1 else hidden * self.head.scale).contiguous()
        weight, most = self.head.weight.detach(), len(self.head.weight) // _LARGEST_PART
        exponent = exponent_of(self.alpha)
        return list_candidates(h, weight, self.rounded, self.bias, self.alpha, exponent, self.tau, most)

    def golds(self, hidden: Tensor, y: Tensor) -> Tensor:
        """``z_y`` (n,) float64 of rows ``hidden`` (n, D) and their classes (n,)."""
        z = torch.einsum("nd,nd->n", hidden.double(), self.head.weight[y].double()) * self.head.scale
        return z if self.bias is None else z + self.bias[y]


def may_be_screened(head: LinearHead, hidden: Tensor) -> bool:
    """Whether a layer and its inputs (N, D) are large enough, and products in bfloat16 fast enough."""
    return head.weight.numel() >= _FEWEST_WEIGHTS and len(hidden) >= _FEWEST_ROWS and bfloat16_is_fast()
