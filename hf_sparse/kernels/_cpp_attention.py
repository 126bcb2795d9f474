"""entmax attention by the C++ kernel on tensors: no matrix of scores. No gradient flows through the two functions."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._library import library
from ._limits import dtype_problem
from .gpu.scores import Scores

# The longest vector of the kernel, in entries: rows are read in whole vectors.
LANES = 16
# Tiles multiply as many columns of bfloat16 at a time, and as many queries. They read values in blocks of keys, KEYS
# of cpp/attention.hpp, of which the last may end behind them.
_TILE, _BLOCK = 32, 64
# Keys and values are read for every tile of queries: many rows that lie far apart fall on few lines of the cache.
_MANY_KEYS = 256
# A part of the queries sums up its own derivatives of keys and values: enough parts to keep threads busy, but none
# with few queries. Their number depends on shapes alone, so that results do not depend on the number of threads.
_ENOUGH_PARTS, _FEWEST_QUERIES = 16, 256


class Rows(ctypes.Structure):
    """A tensor (batch, heads, rows, columns), columns side by side."""

    _fields_ = (("at", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "head", "row")))


class Pairs(ctypes.Structure):
    """A tensor (batch, heads, queries, keys)."""

    _fields_ = (("at", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "head", "query", "key")))


class _Call(ctypes.Structure):
    """``AttentionCall`` of cpp/attention.hpp, field by field."""

    _fields_ = (
        *((name, Rows) for name in ("q", "k", "v", "out", "dout", "dq", "dk", "dv")),
        *((name, ctypes.c_int64) for name in ("dk_part", "dv_part")),
        *((name, Rows) for name in ("half_q", "half_k", "half_v")),
        ("added", Pairs * 2),
        *((name, ctypes.c_void_p) for name in ("alpha", "temperature", "sinks", "tau", "dalpha", "dsinks")),
        *(
            (name, ctypes.c_int64)
            for name in ("num_sequences", "num_heads", "num_key_heads", "num_queries", "num_keys", "head_dim")
        ),
        *((name, ctypes.c_int64) for name in ("value_dim", "num_parts", "window")),
        *((name, ctypes.c_float) for name in ("scaling", "softcap")),
        ("causal", ctypes.c_int32),
    )


def cpp_attention_problem(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> str | None:
    """Why the kernel cannot take these tensors (batch, heads, length, head_dim) and sinks (heads,), or None."""
    for x in (query, key, value):
        if x.device.type != "cpu" or type(x) not in (Tensor, torch.nn.Parameter):
            return f"takes plain tensors on the CPU, was {type(x).__name__} on {x.device}"
    return dtype_problem(query, key, value) or _shape_problem(query, key, value, sinks)


def _shape_problem(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> str | None:
    if min(query.numel(), key.numel(), value.numel()) == 0:
        return "takes at least one query and one key"
    batch, heads, _, head_dim = query.shape
    if key.shape[:3] != value.shape[:3] or (key.shape[0], key.shape[3]) != (batch, head_dim):
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        return f"takes queries, keys and values of one batch and keys like queries, were of shapes {shapes}"
    if heads % key.shape[1] != 0:
        return f"takes heads in groups of equal size, were {heads} to {key.shape[1]} key heads"
    if sinks is not None and sinks.shape != (heads,):
        return f"takes one sink for each of {heads} heads, were of shape {tuple(sinks.shape)}"
    return None


class CppGradients(NamedTuple):
    """Derivatives of a scalar; ``alpha`` and ``sinks`` (heads,), None where there is none."""

    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor | None
    sinks: Tensor | None


@cache
def has_tiles() -> bool:
    """Whether the kernel multiplies bfloat16 in tiles: on a CPU with AMX that the system lets this process use."""
    found = ctypes.c_int()
    library().hf_sparse_has_tiles(ctypes.byref(found))
    return bool(found.value)


def _by_tiles(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether tiles multiply these: not for a few queries, for which values would be turned in vain."""
    return q.shape[2] >= _TILE and all(x.dtype == torch.bfloat16 for x in (q, k, v)) and has_tiles()


def rows_at(x: Tensor) -> Rows:
    """A tensor (batch, heads, rows, columns) as the kernel reads it; the caller keeps it alive."""
    return Rows(x.data_ptr(), *x.stride()[:3])


def pairs_at(x: Tensor, shape: tuple[int, int, int, int]) -> tuple[Pairs, Tensor]:
    """What is added to scores as the kernel reads it, -inf where a key is hidden; and the tensor that holds it."""
    if x.dtype == torch.bool:
        held = torch.zeros_like(x, dtype=torch.float32).masked_fill_(~x, -torch.inf)
    else:
        held = x.float()
    return Pairs(held.data_ptr(), *held.expand(shape).stride()), held


class _Request:
    """The kernel's arguments for a call, and the tensors to which they point.

    Attributes:
        by_tiles: whether tiles multiply queries with keys, and weights with values. All else reads float32.
    """

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, tau: Tensor, scores: Scores, temperature: Tensor | None
    ) -> None:
        self.by_tiles = _by_tiles(q, k, v)
        self.q, self.k, self.v = map(self.readable, (q, k, v))
        if k.shape[2] >= _MANY_KEYS:
            self.k, self.v = self.k.contiguous(), self.v.contiguous()
        alpha = scores.alpha.detach().float().contiguous()
        temperature = (torch.ones_like(alpha) if temperature is None else temperature.float()).contiguous()
        sinks = None if scores.sinks is None else scores.sinks.detach().float().contiguous()
        shape = (*q.shape[:3], k.shape[2])
        added = [pairs_at(x, shape) for x in (scores.bias, scores.mask) if x is not None]
        self.held = [alpha, temperature, sinks, *(tensor for _, tensor in added)]
        self.call = _Call(
            added=(Pairs * 2)(*(pairs for pairs, _ in added)),
            alpha=alpha.data_ptr(), temperature=temperature.data_ptr(),
            sinks=None if sinks is None else sinks.data_ptr(), tau=tau.data_ptr(),
            num_sequences=shape[0], num_heads=shape[1], num_key_heads=k.shape[1], num_queries=shape[2],
            num_keys=shape[3], head_dim=self.q.shape[3], value_dim=self.v.shape[3], num_parts=1,
            window=scores.window or 0, scaling=scores.scaling, softcap=scores.softcap or 0.0, causal=scores.causal,
        )  # fmt: skip
        if self.by_tiles:
            self.point(half_q=self.q, half_k=self.k)

    def readable(self, x: Tensor) -> Tensor:
        """x (batch, heads, rows, columns), columns side by side and padded with zeros to whole vectors or tiles."""
        missing = -x.shape[3] % (_TILE if self.by_tiles else LANES)
        x = x.detach()
        if missing:
            return pad(x, (0, missing))
        return x if x.stride(3) == 1 else x.contiguous()

    def point(self, **tensors: Tensor) -> None:
        """Have arguments of the call point to tensors (batch, heads, rows, columns)."""
        for name, x in tensors.items():
            setattr(self.call, name, rows_at(x))
        self.held += tensors.values()


def cpp_attention_forward(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, temperature: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """entmax attention.

    Args:
        q: (batch, heads, queries, head_dim), any strides.
        k: (batch, key_heads, keys, head_dim), heads a multiple of key_heads.
        v: (batch, key_heads, keys, value_dim), all of float32, bfloat16 or float16.
        scores: what the scores are made of, and the alpha that maps them; ``exponent`` is not read. ``bias`` and
            ``mask`` broadcast to (batch, heads, queries, keys); an added mask hides where it is ``-inf``.
        temperature: (heads,), divides the scores, sinks included; None for 1.

    Returns:
        out: (batch, heads, queries, value_dim) in the dtype of q, in memory (batch, queries, heads, value_dim).
        tau: (batch, heads, queries) float32, the thresholds, measured from the highest score of each query.

    Memory: the result, tau, copies of half-precision inputs in float32 (where tiles multiply, of v alone, and one in
        bfloat16), and for each thread 3 numbers per key and query of a tile of at most 32 queries.
    """
    tau = q.new_empty(q.shape[:3], dtype=torch.float32)
    request = _Request(q, k, v, tau, scores, temperature)
    out = tau.new_empty(q.shape[0], q.shape[2], q.shape[1], request.v.shape[3]).transpose(1, 2)
    request.point(v=request.v.float(), out=out)
    if request.by_tiles:
        request.point(half_v=pad(request.v.transpose(2, 3), (0, _BLOCK)))
    else:
        request.point(q=request.q.float(), k=request.k.float())
    library().hf_sparse_attend(ctypes.byref(request.call), torch.get_num_threads())
    return out[..., : v.shape[3]].to(q.dtype), tau


def cpp_attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tau: Tensor,
    scores: Scores,
    temperature: Tensor | None = None,
    learned: bool = False,
) -> CppGradients:
    """The derivatives of ``<dout, cpp_attention_forward(q, k, v, scores)>``.

    Args:
        dout: (batch, heads, queries, value_dim).
        q: as given to ``cpp_attention_forward``, like ``k``, ``v``, ``scores`` and ``temperature``.
        tau: as ``cpp_attention_forward`` returned it.
        learned: whether alpha wants its gradient.
    """
    request = _Request(q, k, v, tau, scores, temperature)
    call, shape = request.call, request.k.shape
    upstream = request.readable(dout)
    most = -(-_ENOUGH_PARTS // (shape[0] * shape[1]))
    call.num_parts = parts = max(1, min(most, q.shape[2] // _FEWEST_QUERIES))
    dq = tau.new_empty(request.q.shape)
    dk, dv = (tau.new_zeros(parts, *shape[:3], x.shape[3]) for x in (request.k, request.v))
    dalpha, dsinks = (torch.empty_like(tau) if x else None for x in (learned, scores.sinks is not None))
    request.point(q=request.q.float(), k=request.k.float(), v=request.v.float(), dout=upstream.float())
    request.point(dq=dq, dk=dk[0], dv=dv[0])
    call.dk_part, call.dv_part = dk.stride(0), dv.stride(0)
    call.dalpha, call.dsinks = (None if x is None else x.data_ptr() for x in (dalpha, dsinks))
    library().hf_sparse_differentiate_attention(ctypes.byref(call), torch.get_num_threads())
    of_k, of_v = (x[0] if parts == 1 else x.sum(0) for x in (dk, dv))
    of_q, of_k, of_v = (found[..., : x.shape[3]].to(x.dtype) for found, x in ((dq, q), (of_k, k), (of_v, v)))
    return CppGradients(of_q, of_k, of_v, _by_head(dalpha, scores.alpha), _by_head(dsinks, scores.sinks))


def _by_head(of_queries: Tensor | None, like: Tensor | None) -> Tensor | None:
    """The sum (heads,) of derivatives (batch, heads, queries), in the dtype of what they are derivatives by."""
    return None if of_queries is None or like is None else of_queries.sum((0, 2)).to(like.dtype)
