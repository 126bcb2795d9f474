"""One query over a cache of keys: keys are read once, values only where there is weight.

The scores of the query are a row, so the row kernels find its weights. Left are two products with the cache, in which
the query heads that share a key head are the rows of one small matrix.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._launch import on_device_of, padded, unit
from ._tiles import RowTensor, row_tensor, tile_rows

# Programs per key head: enough for small batches to fill a GPU, each with a few thousand keys of a long cache.
_MOST_SPLITS = 32


@triton.jit(do_not_specialize=["tiles_each"])
def multiply_keys(
    Q, K, SCORES, num_keys, group, scaling, tiles_each,
    head_dim: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Scores (batch, heads, keys) of a part of the keys per program; the rows of Q are the heads of a group."""
    part = tl.program_id(0)
    key_head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    member = tl.arange(0, GROUP)
    q = tile_rows(Q, batch, key_head, member, group, head_dim, HEAD)
    SCORES += (batch * tl.num_programs(1) + key_head) * group * num_keys
    for tile in range(part * tiles_each, tl.minimum((part + 1) * tiles_each, tl.cdiv(num_keys, KEYS))):
        key = tile * KEYS + tl.arange(0, KEYS)
        k = tile_rows(K, batch, key_head, key, num_keys, head_dim, HEAD)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling
        inside = (member < group)[:, None] & (key < num_keys)[None, :]
        tl.store(SCORES + member[:, None].to(tl.int64) * num_keys + key[None, :], scores, mask=inside)


@triton.jit(do_not_specialize=["tiles_each"])
def multiply_values(
    P, V, PARTS, p_row, num_keys, group, tiles_each,
    value_dim: tl.constexpr, GROUP: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Sums of weighted values (batch, key heads, parts, group, value_dim); values without weight are not read."""
    part = tl.program_id(0)
    key_head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    member = tl.arange(0, GROUP)
    head = (batch * tl.num_programs(1) + key_head) * group
    out = tl.zeros((GROUP, VALUE), tl.float32)
    for tile in range(part * tiles_each, tl.minimum((part + 1) * tiles_each, tl.cdiv(num_keys, KEYS))):
        key = tile * KEYS + tl.arange(0, KEYS)
        inside = (member < group)[:, None] & (key < num_keys)[None, :]
        p = tl.load(P + (head + member)[:, None] * p_row + key[None, :], mask=inside, other=0.0)
        # Not "> 0": a NaN must reach the output.
        if tl.max(tl.max((p != 0).to(tl.int32), 1), 0) > 0:
            v = tile_rows(V, batch, key_head, key, num_keys, value_dim, VALUE)
            out += tl.dot(p.to(v.dtype), v, input_precision="ieee")
    column = tl.arange(0, VALUE)
    place = (head * tl.num_programs(0) + part * group + member)[:, None] * value_dim + column[None, :]
    tl.store(PARTS + place, out, mask=(member < group)[:, None] & (column < value_dim)[None, :])


def _split(num_keys: int, cache: Tensor) -> tuple[int, int, int]:
    """Numbers of programs that share the keys, of tiles per program, and of keys per tile, by their width."""
    keys = 64 if padded(cache.shape[3]) * cache.dtype.itemsize <= 256 else 32
    num_tiles = triton.cdiv(num_keys, keys)
    tiles_each = triton.cdiv(num_tiles, _MOST_SPLITS)
    return triton.cdiv(num_tiles, tiles_each), tiles_each, keys


def decode_scores(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    """``scaling q k^T`` (batch, heads, 1, keys) in float32.

    Args:
        query: (batch, heads, 1, head_dim), any strides.
        key: (batch, key_heads, keys, head_dim), any strides.
        scaling: factor on the dot products.

    Cost: one read of the keys.
    """
    query, key = unit(query), unit(key)
    batch, heads, _, head_dim = query.shape
    key_heads, num_keys = key.shape[1:3]
    scores = torch.empty((batch, heads, 1, num_keys), dtype=torch.float32, device=query.device)
    num_parts, tiles_each, keys = _split(num_keys, key)
    group = heads // key_heads
    heads_as_rows = RowTensor(query, query.stride(0), group * query.stride(1), query.stride(1))
    with on_device_of(query):
        multiply_keys[(num_parts, key_heads, batch)](
            heads_as_rows, row_tensor(key), scores, num_keys, group, scaling, tiles_each,
            head_dim=head_dim, GROUP=padded(group), HEAD=padded(head_dim), KEYS=keys,
        )  # fmt: skip
    return scores


def decode_values(weights: Tensor, value: Tensor) -> Tensor:
    """``p v`` (batch, heads, 1, value_dim) in the dtype of value.

    Args:
        weights: (batch, heads, 1, keys or more) float32; weights beyond the keys, those of sinks, are left out.
        value: (batch, key_heads, keys, value_dim), any strides.

    Cost: one read of the weights, and of the values of each tile of keys that has some weight.
    """
    weights, value = weights.contiguous(), unit(value)
    batch, heads = weights.shape[:2]
    key_heads, num_keys, value_dim = value.shape[1:]
    num_parts, tiles_each, keys = _split(num_keys, value)
    group = heads // key_heads
    shape = (batch, key_heads, num_parts, group, value_dim)
    parts = torch.empty(shape, dtype=torch.float32, device=value.device)
    with on_device_of(value):
        multiply_values[(num_parts, key_heads, batch)](
            weights, row_tensor(value), parts, weights.stride(1), num_keys, group, tiles_each,
            value_dim=value_dim, GROUP=padded(group), VALUE=padded(value_dim), KEYS=keys,
        )  # fmt: skip
    return parts.sum(2).view(batch, heads, 1, value_dim).to(value.dtype)
