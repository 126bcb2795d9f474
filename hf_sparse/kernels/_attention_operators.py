"""Flash entmax attention by Triton, and the two products of decoding, as operators of torch.

Experimental: one GPU has run them. Defining them imports no Triton; the first call does.
"""

from __future__ import annotations

from typing import get_type_hints

import torch
from torch import Tensor

from ._limits import dtype_problem
from ._triton_device import shared_memory, triton_problem
from .gpu.scores import Scores

LARGEST_HEAD = 256
# What CUDA launches along an axis other than the first.
_MOST_SEQUENCES = 65_535
# Bytes of shared memory per block: what every GPU since A100 has, RTX 30 to 50 too; what A100, H100 and B200 have.
_EVERY_GPU, _DATA_CENTRE = 99 * 1024, 163 * 1024


def shared_memory_needed(head_dim: int, value_dim: int, dtype: torch.dtype) -> int:
    """Bytes of shared memory that a block of the kernels can take; the tests compile them to see that it is enough."""
    return _DATA_CENTRE if dtype.itemsize == 2 and max(head_dim, value_dim) > 128 else _EVERY_GPU


def triton_attention_problem(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Why the kernels cannot take these tensors (batch, heads, length, head_dim), or None."""
    return (
        dtype_problem(query, key, value)
        or _shape_problem(query, key, value)
        or triton_problem(query.device)
        or _memory_problem(query, value)
    )


def _shape_problem(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    if max(query.shape[-1], value.shape[-1]) > LARGEST_HEAD:
        return f"takes heads of at most {LARGEST_HEAD} dimensions, were {query.shape[-1]} and {value.shape[-1]}"
    if query.shape[1] % key.shape[1] != 0:
        return f"takes heads in groups of equal size, were {query.shape[1]} to {key.shape[1]} key heads"
    if min(query.numel(), key.numel(), value.numel()) == 0:
        return "takes at least one query and one key"
    if query.shape[0] > _MOST_SEQUENCES:
        return f"takes at most {_MOST_SEQUENCES} sequences, were {query.shape[0]}"
    return None


def _memory_problem(query: Tensor, value: Tensor) -> str | None:
    if not query.is_cuda:
        return None
    needed = shared_memory_needed(query.shape[-1], value.shape[-1], query.dtype)
    found = shared_memory(query.device)
    if found >= needed:
        return None
    return f"needs {needed} bytes of shared memory for heads of this size and {query.dtype}, here are {found}"


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
        result, four bytes per query, and five bytes per tile.
    """
    shape = (*query.shape[:3], key.shape[2])
    bias, mask = (None if x is None else x.expand(shape) for x in (bias, mask))
    if torch.is_tensor(alpha):
        exponent, alphas = 0.0, alpha.float()
    else:
        alphas = torch.full((shape[1],), alpha, dtype=torch.float32, device=query.device)
    scores = Scores(alphas, exponent, float(scaling), causal, window, softcap, bias, mask, sinks)
    out, _, _ = flash_entmax(query, key, value, *scores)
    return out


# The fields of Scores as a schema of torch writes them.
_KINDS = {
    Tensor: "Tensor", Tensor | None: "Tensor?", int | None: "SymInt?", float: "float", float | None: "float?",
    bool: "bool",
}  # fmt: skip
_SCORES = ", ".join(f"{_KINDS[kind]} {name}" for name, kind in get_type_hints(Scores).items())


@torch.library.custom_op(
    "hf_sparse::entmax_attention",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_SCORES}) -> (Tensor, Tensor, Tensor)",
)
def flash_entmax(q, k, v, *scores):
    """``gpu.attention.attention_forward``, with the fields of ``Scores`` one by one."""
    from .gpu.attention import attention_forward

    return attention_forward(q, k, v, Scores(*scores))


@flash_entmax.register_fake
def _(q, k, v, *scores):
    from .gpu.attention import num_tiles

    batch, heads, num_queries, _ = q.shape
    out = q.new_empty(batch, num_queries, heads, v.shape[3]).transpose(1, 2)
    tau = q.new_empty((batch, heads, num_queries), dtype=torch.float32)
    return out, tau, q.new_empty((batch, heads, *num_tiles(q, k, v)), dtype=torch.int8)


@torch.library.custom_op(
    "hf_sparse::entmax_attention_gradients",
    mutates_args=(),
    schema=(
        f"(bool learned, Tensor dout, Tensor q, Tensor k, Tensor v, Tensor tau, Tensor live, {_SCORES}) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)
def _flash_entmax_gradients(learned, dout, q, k, v, tau, live, *scores):
    """``gpu.attention.attention_backward``; the gradients of alpha and of sinks are empty where there is none."""
    from .gpu.attention import attention_backward

    gradients = attention_backward(dout, q, k, v, tau, live, Scores(*scores), learned)
    return tuple(q.new_empty(0) if gradient is None else gradient for gradient in gradients)


@_flash_entmax_gradients.register_fake
def _(learned, dout, q, k, v, tau, live, *scores):
    from .gpu.attention import empty_gradients

    alpha, sinks = Scores(*scores).alpha, Scores(*scores).sinks
    of_alpha = torch.empty_like(alpha) if learned else q.new_empty(0)
    return *empty_gradients(q, k, v), of_alpha, q.new_empty(0) if sinks is None else torch.empty_like(sinks)


def _save(ctx, inputs, output) -> None:
    q, k, v, *scores = inputs
    _, tau, live = output
    ctx.mark_non_differentiable(tau, live)
    ctx.numbers = [None if torch.is_tensor(field) else field for field in scores]
    tensors = [field if torch.is_tensor(field) else None for field in scores]
    ctx.save_for_backward(q, k, v, tau, live, *tensors)


def _differentiate(ctx, dout, _dtau, _dlive):
    q, k, v, tau, live, *tensors = ctx.saved_tensors
    scores = Scores(*(number if field is None else field for number, field in zip(ctx.numbers, tensors)))
    learned = ctx.needs_input_grad[3]
    *of_qkv, of_alpha, of_sinks = _flash_entmax_gradients(learned, dout, q, k, v, tau, live, *scores)
    of_scores = dict.fromkeys(Scores._fields)
    of_scores |= {"alpha": of_alpha if learned else None, "sinks": None if scores.sinks is None else of_sinks}
    return *of_qkv, *of_scores.values()


flash_entmax.register_autograd(_differentiate, setup_context=_save)


@torch.library.custom_op("hf_sparse::decode_scores", mutates_args=())
def triton_decode_scores(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    """``scaling q k^T`` (batch, heads, 1, keys) of one query, in float32; heads share keys by groups. No gradient."""
    from .gpu.decode import decode_scores

    return decode_scores(query, key, scaling)


@triton_decode_scores.register_fake
def _(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    return query.new_empty((*query.shape[:3], key.shape[2]), dtype=torch.float32)


@torch.library.custom_op("hf_sparse::decode_values", mutates_args=())
def triton_decode_values(weights: Tensor, value: Tensor) -> Tensor:
    """``p v`` (batch, heads, 1, value_dim) of one query's float32 weights; values without weight are not read.

    Weights beyond the number of values, those of sinks, are left out. No gradient.
    """
    from .gpu.decode import decode_values

    return decode_values(weights, value)


@triton_decode_values.register_fake
def _(weights: Tensor, value: Tensor) -> Tensor:
    return value.new_empty((*weights.shape[:3], value.shape[3]))
