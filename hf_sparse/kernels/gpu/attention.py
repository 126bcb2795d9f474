"""Launches of the attention kernels on tensors. No gradient flows through them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ._attention_backward import differentiate_keys, differentiate_queries
from ._attention_forward import attend, find_thresholds
from ._launch import on_device_of, padded, unit, whole
from ._tiles import Rules, pair_tensor, row_tensor
from .scores import Scores

_MAX_STEPS = 30


class Tiles(NamedTuple):
    """Sizes of the attention kernels' tiles and of their launches.

    Attributes:
        queries: queries per tile, the same in forward and backward, which share the live tiles.
        keys: keys per tile, likewise.
        num_warps: warps of 32 threads per tile.
        num_stages: tiles in flight in a loop: one is computed on while the others are read.
        num_key_stages: the same in the backward for keys, which accumulates two results.
    """

    queries: int
    keys: int
    num_warps: int = 4
    num_stages: int = 2
    num_key_stages: int = 2


def tiles_for(head_dim: int, value_dim: int, dtype: torch.dtype) -> Tiles:
    """Tiles by the size of a key and its value, such that registers suffice, and shared memory on any GPU if possible.

    ``python -m tests.kernels.ahead_of_time`` prints what each choice takes. Products of float32 do not run on matrix
    units: their tiles are small, since each multiplication of a thread is an instruction of its own.
    """
    width = triton.next_power_of_2(head_dim) + triton.next_power_of_2(value_dim)
    if dtype.itemsize == 2:
        if width <= 128:
            return Tiles(64, 64, num_stages=3, num_key_stages=3)
        return Tiles(64, 64) if width <= 256 else Tiles(64, 32, num_key_stages=1)
    if width <= 128:
        return Tiles(32, 32)
    return Tiles(32, 32, num_warps=8) if width <= 256 else Tiles(16, 16, num_warps=8)


def num_tiles(q: Tensor, k: Tensor, v: Tensor, tiles: Tiles | None = None) -> tuple[int, int]:
    """Tiles of queries and of keys per head; arguments as those of ``attention_forward``."""
    tiles = tiles or tiles_for(q.shape[3], v.shape[3], q.dtype)
    return triton.cdiv(q.shape[2], tiles.queries), triton.cdiv(k.shape[2], tiles.keys)


def _tolerance(exponent: float, dtype: torch.dtype) -> float:
    """By how much the weights of a query may exceed 1 before the last step of Newton's method.

    From an exponent of two on that step squares the error, to less than half precision rounds; below, it converges on
    the support.
    """
    half = dtype.itemsize == 2
    if whole(exponent) >= 2:
        return 3e-2 if half else 1e-4
    return 1e-4 if half else 2e-6


def _of_scores(q: Tensor, k: Tensor, scores: Scores, tiles: Tiles) -> dict[str, object]:
    """The arguments that all kernels share, by name."""
    mask, lowest = scores.mask, 0.0
    if mask is not None and mask.dtype == torch.bool:
        mask = mask.view(torch.int8)
    elif mask is not None:
        lowest = torch.finfo(mask.dtype).min / 2
    return {
        "Q": row_tensor(q), "K": row_tensor(k), "ALPHA": scores.alpha,
        "rules": Rules(q.shape[2], k.shape[2], scores.scaling, scores.softcap, scores.window, lowest),
        "BIAS": pair_tensor(scores.bias), "MASK": pair_tensor(mask), "group": q.shape[1] // k.shape[1],
        "CAUSAL": scores.causal, "EXPONENT": whole(scores.exponent),
        "head_dim": q.shape[3], "HEAD": padded(q.shape[3]), "QUERIES": tiles.queries, "KEYS": tiles.keys,
        "num_warps": tiles.num_warps,
    }  # fmt: skip


def _of_values(v: Tensor) -> dict[str, object]:
    """The arguments of the kernels that read values, besides."""
    return {"V": row_tensor(v), "value_dim": v.shape[3], "VALUE": padded(v.shape[3])}


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, tiles: Tiles | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """entmax attention.

    Args:
        q: (batch, heads, queries, head_dim), any strides.
        k: (batch, key_heads, keys, head_dim), heads a multiple of key_heads.
        v: (batch, key_heads, keys, value_dim), all three of one dtype: float32, bfloat16 or float16.
        scores: what the scores are made of, and the alpha that maps them.
        tiles: their sizes; None for ``tiles_for``.

    Returns:
        out: (batch, heads, queries, value_dim), in memory (batch, queries, heads, value_dim).
        tau: (batch, heads, queries) float32, the thresholds.
        live: (batch, heads, query tiles, key tiles) int8, 1 where a tile holds support.

    Memory: the result, tau, and a byte and a list entry per tile; nothing per score.
    """
    q, k, v = unit(q), unit(k), unit(v)
    batch, heads, num_queries, _ = q.shape
    tiles = tiles or tiles_for(q.shape[3], v.shape[3], q.dtype)
    shape = num_tiles(q, k, v, tiles)
    out = q.new_empty(batch, num_queries, heads, v.shape[3]).transpose(1, 2)
    tau = torch.empty((batch, heads, num_queries), dtype=torch.float32, device=q.device)
    live = torch.zeros((batch, heads, *shape), dtype=torch.int8, device=q.device)
    listed = torch.empty(live.shape, dtype=torch.int32, device=q.device)
    count = torch.empty(live.shape[:3], dtype=torch.int32, device=q.device)
    common = _of_scores(q, k, scores, tiles) | {
        "TAU": tau, "LIST": listed, "COUNT": count, "SINKS": scores.sinks, "num_stages": tiles.num_stages,
    }  # fmt: skip
    with on_device_of(q):
        find_thresholds[(shape[0], heads, batch)](
            tolerance=_tolerance(scores.exponent, q.dtype), max_steps=_MAX_STEPS, **common
        )
        attend[(shape[0], heads, batch)](OUT=row_tensor(out), LIVE=live, **_of_values(v), **common)
    return out, tau, live


class Gradients(NamedTuple):
    """Derivatives of a scalar; ``alpha`` and ``sinks`` (heads,), None where there is none."""

    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor | None
    sinks: Tensor | None


def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tau: Tensor,
    live: Tensor,
    scores: Scores,
    learned: bool = False,
    tiles: Tiles | None = None,
) -> Gradients:
    """The derivatives of ``<dout, attention_forward(q, k, v)>``.

    Args:
        dout: (batch, heads, queries, value_dim).
        q: as given to ``attention_forward``, like ``k``, ``v``, ``scores`` and ``tiles``.
        tau: as ``attention_forward`` returned it, like ``live``.
        learned: whether alpha wants its gradient.
    """
    dout, q, k, v = unit(dout), unit(q), unit(k), unit(v)
    tiles = tiles or tiles_for(q.shape[3], v.shape[3], q.dtype)
    common = _of_scores(q, k, scores, tiles) | _of_values(v) | {"TAU": tau, "DOUT": row_tensor(dout)}
    dq, dk, dv = empty_gradients(q, k, v)
    delta, dalpha = torch.empty_like(tau), torch.empty_like(tau) if learned else None
    batch, heads, num_query_tiles, num_key_tiles = live.shape
    with on_device_of(q):
        listed, count = tile_lists(live)
        differentiate_queries[(num_query_tiles, heads, batch)](
            DQ=row_tensor(dq), DELTA=delta, DALPHA=dalpha, LIST=listed, COUNT=count, SINKS=scores.sinks,
            num_stages=tiles.num_stages, **common,
        )  # fmt: skip
        listed, count = tile_lists(live.transpose(2, 3))
        differentiate_keys[(num_key_tiles, k.shape[1], batch)](
            DELTA=delta, DK=row_tensor(dk), DV=row_tensor(dv), LIST=listed, COUNT=count,
            num_stages=tiles.num_key_stages, **common,
        )  # fmt: skip
    dsinks = None
    if scores.sinks is not None:
        scale = scores.alpha[:, None] - 1
        u = (scores.sinks.float()[:, None] * scale - tau).clamp(min=0)
        w = torch.where(u > 0, u, 1.0).pow(1 / scale - 1) * (u > 0)
        dsinks = -(w * delta).sum((0, 2)).to(scores.sinks.dtype)
    return Gradients(dq, dk, dv, None if dalpha is None else dalpha.sum((0, 2)), dsinks)


def empty_gradients(*tensors: Tensor) -> list[Tensor]:
    """Room for the derivatives in queries, keys and values."""
    return [torch.empty_like(unit(x)) for x in tensors]


def tile_lists(live: Tensor) -> tuple[Tensor, Tensor]:
    """Per row of live (..., tiles): the indices of its ones, ascending, then all others; and the number of ones.

    >>> tile_lists(torch.tensor([[0, 1, 1]], dtype=torch.int8))
    (tensor([[1, 2, 0]], dtype=torch.int32), tensor([2], dtype=torch.int32))
    """
    live = live.contiguous()
    listed = live.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return listed, live.sum(-1, dtype=torch.int32)
