"""The factor on scores of attention that grows with the number of keys, so that weights do not spread."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._rows import wide


def length_scale(z: Tensor, delta: Any, beta: Any, gamma: Any) -> Tensor:
    """``delta + beta (log n) ^ gamma``, with n the number of visible scores in a row and one more.

    With causal attention a query at position i sees i + 1 keys, whether it is computed together with all others or
    alone against a cache. The one more keeps ``log n`` above 0.

    Args:
        z: scores (..., keys); ``-inf`` is masked. A sink counts as a key.
        delta, beta, gamma: numbers, or tensors that broadcast over (..., 1).

    Returns:
        Factors (..., 1), float32 (float64 for float64 scores).

    Source: Vasylenko et al. 2025, Long-Context Generalization with Sparse Attention (adaptive-scalable entmax), where
    beta and gamma also depend on the query; here each head has its own. With delta 0 and gamma 1 it is the factor of
    scalable softmax (Nakanishi 2025), but for the one more.
    Cost: one pass over the scores.

    >>> length_scale(torch.zeros(1, 7), delta=1.0, beta=1.0, gamma=2.0)  # 1 + (log 8) ^ 2
    tensor([[5.3241]])
    """
    visible = (z > -torch.inf).sum(-1, keepdim=True).clamp(min=1)
    return delta + beta * torch.log1p(visible.to(wide(z[..., :1]).dtype)) ** gamma
