"""Launches of the attention kernels on tensors. Plain computations: no gradient flows through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ._attention_backward import differentiate_keys, differentiate_queries
from ._attention_forward import attend
from ._launch import on_device_of

_MAX_STEPS = 30


@dataclass(frozen=True)
class Scores:
    """How scores come about, ``softcap(scaling q k^T) + bias + mask``, and what is hidden of them.

    Attributes:
        alpha: (heads,) float32, above 1.
        exponent: ``1 / (alpha - 1)`` of all heads where that is 1, 2, 3 or 4, else 0: it chooses the compiled variant.
        scaling: factor on the dot products.
        causal: the last query sees all keys, each one before it one less.
        window: a query sees its own key and the window - 1 before it; None for all.
        softcap: ``softcap tanh(scores / softcap)``, or None.
        bias: added, (batch, heads, queries, keys), some axes of stride 0.
        mask: the same shape; boolean (True is visible), or added, and hidden in the lower half of its dtype's range.
        sinks: (heads,) scores that take weight and give nothing, or None.
    """

    alpha: Tensor
    exponent: int
    scaling: float
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    bias: Tensor | None = None
    mask: Tensor | None = None
    sinks: Tensor | None = None


class Tiles(NamedTuple):
    """How the attention kernels are launched.

    Attributes:
        queries: of a tile, the same in forward and backward, which share the live tiles.
        keys: of a tile, likewise.
        num_warps: of 32 threads, to a tile.
        num_stages: how many tiles are under way in a loop: one is worked on while the others are read.
        num_key_stages: the same in the backward for keys, which keeps two results.
    """

    queries: int
    keys: int
    num_warps: int = 4
    num_stages: int = 2
    num_key_stages: int = 2


def tiles_for(head_dim: int, value_dim: int, dtype: torch.dtype) -> Tiles:
    """Fixed by what a key and its value take, for registers to suffice, and shared memory of any GPU if it can be.

    ``python -m tests.kernels.ahead_of_time`` tells what each choice takes. A product of float32 is no work for the
    matrix units: its tiles are small, since each multiplication of a thread is an instruction, and all of them are
    written out.
    """
    width = triton.next_power_of_2(head_dim) + triton.next_power_of_2(value_dim)
    if dtype.itemsize == 2:
        if width <= 128:
            return Tiles(64, 64, num_stages=3, num_key_stages=3)
        return Tiles(64, 64, num_warps=8) if width <= 256 else Tiles(64, 32, num_warps=8, num_key_stages=1)
    if width <= 128:
        return Tiles(32, 32)
    return Tiles(32, 32, num_warps=8) if width <= 256 else Tiles(16, 16, num_warps=8)


def _strides(name: str, axes: tuple[str, ...], x: Tensor | None) -> dict[str, int]:
    return {f"{name}_{axis}": 0 if x is None else x.stride(i) for i, axis in enumerate(axes)}


def _per_query(name: str, x: Tensor) -> dict[str, int]:
    return _strides(name, ("batch", "head", "query"), x)


def _per_key(name: str, x: Tensor) -> dict[str, int]:
    return _strides(name, ("batch", "head", "key"), x)


def _common(q: Tensor, k: Tensor, v: Tensor, scores: Scores, tiles: Tiles) -> dict[str, Any]:
    """The arguments all three kernels share, by name."""
    both = ("batch", "head", "query", "key")
    mask, masked, lowest = scores.mask, 0, 0.0
    if mask is not None and mask.dtype == torch.bool:
        mask, masked = mask.view(torch.int8), 1
    elif mask is not None:
        masked, lowest = 2, torch.finfo(mask.dtype).min / 2
    return {
        "Q": q, "K": k, "V": v, "ALPHA": scores.alpha, "BIAS": scores.bias,
        "MASK": mask,
        **_per_query("q", q), **_per_key("k", k), **_per_key("v", v),
        **_strides("bias", both, scores.bias), **_strides("mask", both, mask),
        "num_queries": q.shape[2], "num_keys": k.shape[2], "group": q.shape[1] // k.shape[1],
        "head_dim": q.shape[3], "value_dim": v.shape[3], "scaling": scores.scaling, "softcap": scores.softcap or 1.0,
        "window": scores.window or 0, "lowest": lowest,
        "KIND": (
            scores.causal, scores.window is not None, scores.softcap is not None, scores.bias is not None, masked
        ),
        "EXPONENT": scores.exponent,
        "QUERIES": tiles.queries, "KEYS": tiles.keys, "num_warps": tiles.num_warps,
        "HEAD": max(16, triton.next_power_of_2(q.shape[3])), "VALUE": max(16, triton.next_power_of_2(v.shape[3])),
    }  # fmt: skip


def unit(x: Tensor) -> Tensor:
    """x with its last axis side by side in memory, as the kernels read it."""
    return x if x.stride(-1) == 1 else x.contiguous()


def forward(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, tiles: Tiles | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """entmax attention.

    Args:
        q: (batch, heads, queries, head_dim), any strides.
        k: (batch, key_heads, keys, head_dim), heads a multiple of key_heads.
        v: (batch, key_heads, keys, value_dim), all three of one dtype: float32, bfloat16 or float16.
        scores: how scores come about.
        tiles: their sizes; None for ``tiles_for``.

    Returns:
        out: (batch, heads, queries, value_dim), in memory (batch, queries, heads, value_dim).
        tau: (batch, heads, queries) float32, the thresholds.
        live: (batch, heads, query tiles, key tiles) int8, 1 where a tile holds support.

    Memory: the result, tau, and a byte and a list entry a tile; nothing a score.
    """
    q, k, v = unit(q), unit(k), unit(v)
    batch, heads, num_queries, _ = q.shape
    tiles = tiles or tiles_for(q.shape[3], v.shape[3], q.dtype)
    num_tiles = triton.cdiv(num_queries, tiles.queries), triton.cdiv(k.shape[2], tiles.keys)
    out = q.new_empty(batch, num_queries, heads, v.shape[3]).transpose(1, 2)
    tau = torch.empty((batch, heads, num_queries), dtype=torch.float32, device=q.device)
    live = torch.zeros((batch, heads, *num_tiles), dtype=torch.int8, device=q.device)
    listed = torch.empty(live.shape, dtype=torch.int32, device=q.device)
    with on_device_of(q):
        attend[(num_tiles[0], heads, batch)](
            OUT=out, TAU=tau, LIVE=live, LIST=listed, SINKS=scores.sinks, **_per_query("out", out),
            # Newton's method squares the error from an exponent of two on; below, it ends on the support.
            tolerance=1e-4 if scores.exponent >= 2 else 2e-6, max_steps=_MAX_STEPS,
            SINKING=scores.sinks is not None, num_stages=tiles.num_stages, **_common(q, k, v, scores, tiles),
        )  # fmt: skip
    return out, tau, live


class Gradients(NamedTuple):
    """Derivatives of a scalar in the arguments; ``alpha`` and ``sinks`` (heads,), None where not asked for."""

    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor | None
    sinks: Tensor | None


def backward(
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
    """The derivatives of ``<dout, forward(q, k, v)>``.

    Args:
        dout: (batch, heads, queries, value_dim).
        q: as given to ``forward``, like ``k``, ``v``, ``scores`` and ``tiles``.
        tau: as ``forward`` returned it, like ``live``.
        learned: whether alpha wants its gradient.
    """
    dout, q, k, v = unit(dout), unit(q), unit(k), unit(v)
    tiles = tiles or tiles_for(q.shape[3], v.shape[3], q.dtype)
    common = _common(q, k, v, scores, tiles) | _per_query("dout", dout) | {"TAU": tau, "DOUT": dout}
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    delta, dalpha = torch.empty_like(tau), torch.empty_like(tau) if learned else None
    batch, heads, num_query_tiles, num_key_tiles = live.shape
    with on_device_of(q):
        listed, count = tile_lists(live)
        differentiate_queries[(num_query_tiles, heads, batch)](
            DQ=dq, DELTA=delta, DALPHA=dalpha, LIST=listed, COUNT=count, SINKS=scores.sinks,
            SINKING=scores.sinks is not None, LEARNED=learned, num_stages=tiles.num_stages, **_per_query("dq", dq),
            **common,
        )  # fmt: skip
        listed, count = tile_lists(live.transpose(2, 3))
        differentiate_keys[(num_key_tiles, k.shape[1], batch)](
            DELTA=delta, DK=dk, DV=dv, LIST=listed, COUNT=count, num_stages=tiles.num_key_stages,
            **_per_key("dk", dk), **_per_key("dv", dv), **common,
        )  # fmt: skip
    dsinks = None
    if scores.sinks is not None:
        scale = scores.alpha[:, None] - 1
        u = (scores.sinks.float()[:, None] * scale - tau).clamp(min=0)
        w = torch.where(u > 0, u, 1.0).pow(1 / scale - 1) * (u > 0)
        dsinks = -(w * delta).sum((0, 2)).to(scores.sinks.dtype)
    return Gradients(dq, dk, dv, None if dalpha is None else dalpha.sum((0, 2)), dsinks)


def tile_lists(live: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of live (..., tiles): the indices of its ones, ascending, before all others; and how many.

    >>> tile_lists(torch.tensor([[0, 1, 1]], dtype=torch.int8))
    (tensor([[1, 2, 0]], dtype=torch.int32), tensor([2], dtype=torch.int32))
    """
    live = live.contiguous()
    listed = live.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return listed, live.sum(-1, dtype=torch.int32)
