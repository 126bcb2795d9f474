"""Flash entmax attention by Triton: what it takes, and the way to it that imports triton only then."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._triton import triton_problem

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_HEAD = 256
# What CUDA launches along an axis other than the first.
_MOST_SEQUENCES = 65_535
# Bytes of shared memory a block: what every GPU since A100 has, RTX 30 to 50 too; what A100, H100 and B200 have.
_EVERY_GPU, _DATA_CENTRE = 99 * 1024, 163 * 1024
# Nearer to softmax, float32 has too few digits for the gradient of alpha, which divides by (alpha - 1)^2.
LOWEST_ATTENTION_ALPHA = 1.02


def shared_memory_needed(head_dim: int, value_dim: int, dtype: torch.dtype) -> int:
    """Bytes of shared memory that a block of the kernels can take; the tests compile them to see that it is enough."""
    return _DATA_CENTRE if dtype.itemsize == 2 and max(head_dim, value_dim) > 128 else _EVERY_GPU


def triton_attention_problem(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Why the kernels cannot take these tensors (batch, heads, length, head_dim), or None."""
    if query.dtype not in DTYPES or not query.dtype == key.dtype == value.dtype:
        dtypes = ", ".join(str(x.dtype) for x in (query, key, value))
        return f"takes queries, keys and values of one dtype of {', '.join(map(str, DTYPES))}, were {dtypes}"
    if max(query.shape[-1], value.shape[-1]) > LARGEST_HEAD:
        return f"takes heads of at most {LARGEST_HEAD} dimensions, were {query.shape[-1]} and {value.shape[-1]}"
    if query.shape[1] % key.shape[1] != 0:
        return f"takes heads in groups of equal size, were {query.shape[1]} to {key.shape[1]} key heads"
    if min(query.numel(), key.numel(), value.numel()) == 0:
        return "takes at least one query and one key"
    if query.shape[0] > _MOST_SEQUENCES:
        return f"takes at most {_MOST_SEQUENCES} sequences, were {query.shape[0]}"
    problem = triton_problem(query.device)
    if problem is None and query.is_cuda:
        needed = shared_memory_needed(query.shape[-1], value.shape[-1], query.dtype)
        properties: Any = torch.cuda.get_device_properties(query.device)
        found = properties.shared_memory_per_block_optin
        if found < needed:
            return f"needs {needed} bytes of shared memory for heads of this size and {query.dtype}, here are {found}"
    return problem


def triton_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor,
    exponent: float,
    *,
    scaling: float,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """entmax attention without a matrix of scores.

    Args:
        query: (batch, heads, queries, head_dim), any strides.
        key: (batch, key_heads, keys, head_dim), heads a multiple of key_heads.
        value: (batch, key_heads, keys, value_dim).
        alpha: in (1, 2]; or (heads,), with a gradient.
        exponent: ``1 / (alpha - 1)``; of no matter for a tensor.
        scaling: factor on the dot products.
        causal: the last query sees all keys, each one before it one less.
        window: with ``causal``, the keys a query sees: its own and those before it.
        softcap: ``softcap tanh(scores / softcap)``, or None.
        bias: constant scores added, broadcastable to (batch, heads, queries, keys).
        mask: broadcastable to the same; boolean (True is visible), or added, and hidden in the lower half of its
            dtype's range.
        sinks: (heads,) scores that take weight and give nothing, with a gradient.

    Returns:
        (batch, heads, queries, value_dim) in the dtype of query, laid out (batch, queries, heads, value_dim). A query
        that sees no key gives zeros. Differentiable once in query, key, value, alpha and sinks.

    Cost: all keys read once for each tile of 64 queries; tiles that hold support two to five times more. Memory: the
        result, four bytes a query, and five bytes a tile.
    """
    from .gpu._launch import whole
    from .gpu.attention_ops import entmax_attention

    shape = (*query.shape[:3], key.shape[2])
    bias, mask = (None if x is None else x.expand(shape) for x in (bias, mask))
    if torch.is_tensor(alpha):
        variant, alphas = 0, alpha.float()
    else:
        variant, alphas = whole(exponent), torch.full((shape[1],), alpha, dtype=torch.float32, device=query.device)
    out, _, _ = entmax_attention(
        query, key, value, alphas, sinks, bias, mask, variant, float(scaling), softcap, causal, window
    )
    return out


def triton_decode_scores(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    """``scaling q k^T`` (batch, heads, 1, keys) of one query, in float32; heads share keys by groups. No gradient."""
    from .gpu.decode_ops import scores_of_one_query

    return scores_of_one_query(query, key, float(scaling))


def triton_decode_values(weights: Tensor, value: Tensor) -> Tensor:
    """``p v`` (batch, heads, 1, value_dim) of one query's float32 weights; values without weight are not read.

    Weights beyond the number of values, those of sinks, are left out. No gradient.
    """
    from .gpu.decode_ops import values_of_one_query

    return values_of_one_query(weights, value)
