"""ReLU divided by the number of keys (Wortsman et al. 2023): attention without a sum over the keys."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import SparseMap, register
from .rows import map_rows, num_visible


def relu_over_n(z: Tensor, dim: int = -1) -> Tensor:
    """``p_i = max(z_i, 0) / n``, n the number of scores in the row that are not masked.

    The weights are for attention. They do not sum to one, and a row without a positive score has none. The paper
    divides by the length of the sequence, which is n where every query sees every key. Under a causal mask or with
    padding n is the number of keys that the query sees, so that a query gets the same weights alone against a cache,
    and whatever padding stands beside it.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        dim: the axis to map.

    Returns:
        Non-negative weights with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros.

    Raises:
        TypeError, IndexError, ValueError: see ``entmax``.

    Source: Wortsman et al. 2023, Replacing softmax with ReLU in Vision Transformers, with exponent 1 of the length.
    Cost: two passes.

    >>> relu_over_n(torch.tensor([3.0, 1.0, -2.0, -torch.inf]))
    tensor([1.0000, 0.3333, 0.0000, 0.0000])
    """
    return map_rows(lambda x: torch.relu(x) / num_visible(x), z, dim)


register(
    SparseMap(
        "relu_over_n",
        relu_over_n,
        None,
        normalized=False,
        elementwise=True,
        shift_invariant=False,
    )
)
