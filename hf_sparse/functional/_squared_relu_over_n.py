"""Squared ReLU divided by the number of keys (Wortsman et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import SparseMap, register
from .rows import map_rows, num_visible


def squared_relu_over_n(z: Tensor, dim: int = -1) -> Tensor:
    """``p_i = max(z_i, 0)^2 / n``, n the number of scores in the row that are not masked.

    The weights are for attention. They do not sum to one, and a row without a positive score has none. For n see
    ``relu_over_n``.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        dim: the axis to map.

    Returns:
        Non-negative weights with exact zeros, shape and dtype of ``z``; ``inf`` where a square is beyond that dtype
        (in float16 from about 256 sqrt(n)). A fully masked row gives zeros.

    Raises:
        TypeError, IndexError, ValueError: see ``entmax``.

    Source: Wortsman et al. 2023, Replacing softmax with ReLU in Vision Transformers, with exponent 1 of the length.
    Cost: three passes.

    >>> squared_relu_over_n(torch.tensor([3.0, 1.0, -2.0, -torch.inf]))
    tensor([3.0000, 0.3333, 0.0000, 0.0000])
    """
    return map_rows(lambda x: torch.relu(x).square() / num_visible(x), z, dim)


register(
    SparseMap(
        "squared_relu_over_n",
        squared_relu_over_n,
        None,
        normalized=False,
        elementwise=True,
        shift_invariant=False,
    )
)
