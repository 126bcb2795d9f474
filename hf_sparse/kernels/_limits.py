"""Dtypes and alphas that the kernels take."""

from __future__ import annotations

import torch
from torch import Tensor

# The C++ kernel is given the index of a dtype.
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Below, float32 sums of powers are too coarse; above, Newton's method has no norm.
LOWEST_ALPHA, HIGHEST_ALPHA = 1.1, 2.0
# The C++ kernel takes logarithms of what is left to one, and so goes down to where entmax becomes softmax.
LOWEST_CPP_ALPHA = 1 + 1e-7
# Closer to softmax, float32 has too few digits for the gradient in alpha, which divides by (alpha - 1)^2.
LOWEST_ATTENTION_ALPHA = 1.02


def dtype_problem(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Why attention cannot take tensors of these dtypes, or None."""
    if query.dtype in DTYPES and query.dtype == key.dtype == value.dtype:
        return None
    dtypes = ", ".join(str(x.dtype) for x in (query, key, value))
    return f"takes queries, keys and values of one dtype of {', '.join(map(str, DTYPES))}, were {dtypes}"


def attention_alpha_problem(low: float, high: float) -> str | None:
    """Why attention cannot take alphas from low to high, or None."""
    if LOWEST_ATTENTION_ALPHA <= low <= high <= HIGHEST_ALPHA:
        return None
    return f"takes alpha in [{LOWEST_ATTENTION_ALPHA}, {HIGHEST_ALPHA}], was {low:g} at least and {high:g} at most"
