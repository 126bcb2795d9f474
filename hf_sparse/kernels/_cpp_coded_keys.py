"""Attention of a few queries over keys that are kept twice, as they are and in 8 bits, by the C++ kernel.

See cpp/coded_keys.hpp for the bound and the proof. No gradient flows through any of it.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from ._cpp_attention import Pairs, Rows, pairs_at, rows_at
from ._library import library
from ._limits import DTYPES
from .gpu.scores import Scores

# Keys whose bytes lie side by side, and columns that share a scale at most; as in the kernel.
_LINE, _GROUP = 16, 64


class CodedKeys(NamedTuple):
    """Keys (batch, heads, length, head_dim) in 8 bits, with room for more.

    Attributes:
        code: (batch, heads, lines, bytes of 16 keys) int8.
        groups: (batch, heads, lines, groups of columns, 16) int32: scale and bound on what is lost, in bfloat16.
    """

    code: Tensor
    groups: Tensor

    @classmethod
    def empty(cls, keys: Tensor) -> CodedKeys:
        """Room for the bytes of ``keys`` (batch, heads, length, head_dim)."""
        batch, heads, length, head_dim = keys.shape
        num_groups = -(-head_dim // _GROUP)
        width = -(-head_dim // num_groups)
        width += width % 2
        lines = -(-length // _LINE)
        code = torch.empty(batch, heads, lines, num_groups * width * _LINE, dtype=torch.int8, device="cpu")
        return cls(code, torch.empty(batch, heads, lines, num_groups, _LINE, dtype=torch.int32, device="cpu"))

    @property
    def bytes_of_key(self) -> int:
        """Bytes of one key of one head."""
        return (self.code.shape[3] + 4 * self.groups[0, 0, 0].numel()) // _LINE


class _CodedCall(ctypes.Structure):
    """``CodedCall`` of cpp/coded_keys.hpp, field by field."""

    _fields_ = (
        *((name, Rows) for name in ("q", "out")),
        *((name, ctypes.c_void_p) for name in ("k", "v")),
        *((name, ctypes.c_int64) for name in ("k_batch", "k_head", "v_batch", "v_head")),
        *((name, ctypes.c_void_p) for name in ("code", "group")),
        ("num_lines", ctypes.c_int64),
        ("added", Pairs * 2),
        *((name, ctypes.c_void_p) for name in ("alpha", "temperature", "sinks")),
        *(
            (name, ctypes.c_int64)
            for name in ("num_sequences", "num_heads", "num_key_heads", "num_queries", "num_keys")
        ),
        *((name, ctypes.c_int64) for name in ("head_dim", "value_dim", "window")),
        ("read", ctypes.c_int64 * 3),
        *((name, ctypes.c_float) for name in ("scaling", "softcap")),
        *((name, ctypes.c_int32) for name in ("causal", "dtype", "fine")),
    )


class RowsRead(NamedTuple):
    """What a call read, in rows of one head.

    Attributes:
        coded: keys in 8 bits, once for up to 8 queries that share them.
        keys: keys as they are, once for all queries that share them.
        values: likewise.
    """

    coded: int
    keys: int
    values: int


def coding_problem(keys: Tensor, values: Tensor) -> str | None:
    """Why the kernel cannot keep keys and values (batch, heads, length, width) of a cache, or None."""
    for x in (keys, values):
        if x.device.type != "cpu" or x.dtype not in DTYPES or type(x) is not Tensor:
            return (
                f"takes plain tensors on the CPU of one of {', '.join(map(str, DTYPES))}, was {x.dtype} on {x.device}"
            )
    return (
        None
        if keys.dtype == values.dtype
        else f"takes keys and values of one dtype, were {keys.dtype}, {values.dtype}"
    )


def code_keys_(coded: CodedKeys, keys: Tensor, first: int) -> bool:
    """Write the bytes of the keys from the position ``first`` on into ``coded``.

    Args:
        coded: room for them.
        keys: (batch, heads, length, head_dim), the columns of a head side by side, key after key.
        first: the positions before it are written already.

    Returns:
        False if a key is not finite, or too large for a norm: ``coded`` is then not to be used.
    """
    call = _call_of(coded, keys)
    library().hf_sparse_code_keys(ctypes.byref(call), first, torch.get_num_threads())
    return bool(call.fine)


def _call_of(coded: CodedKeys, keys: Tensor) -> _CodedCall:
    batch, heads, length, head_dim = keys.shape
    return _CodedCall(
        k=keys.data_ptr(), k_batch=keys.stride(0), k_head=keys.stride(1), code=coded.code.data_ptr(),
        group=coded.groups.data_ptr(), num_lines=coded.code.shape[2], num_sequences=batch, num_key_heads=heads,
        num_keys=length, head_dim=head_dim, dtype=DTYPES.index(keys.dtype),
    )  # fmt: skip


def attend_to_coded(
    q: Tensor, k: Tensor, v: Tensor, coded: CodedKeys, scores: Scores, temperature: Tensor
) -> tuple[Tensor, RowsRead] | None:
    """entmax attention that reads few keys and values, and proves that the others have weight zero.

    Args:
        q: (batch, heads, queries, head_dim).
        k: (batch, key_heads, keys, head_dim), heads a multiple of key_heads; strides as for ``code_keys_``.
        v: (batch, key_heads, keys, value_dim), in the dtype of k; likewise.
        coded: the bytes of k.
        scores: see ``cpp_attention_forward``; alpha in [1.02, 2].
        temperature: (heads,), divides the scores, sinks included.

    Returns:
        (batch, heads, queries, value_dim) in the dtype of q, in memory (batch, queries, heads, value_dim), and what
        was read; None where a query or a score is not finite, or a score is not within its bound.
    """
    call = _call_of(coded, k)
    queries = q.detach().float().contiguous()
    shape = (*q.shape[:3], k.shape[2])
    added = [pairs_at(x, shape) for x in (scores.bias, scores.mask) if x is not None]
    alpha, temperature = (x.detach().float().contiguous() for x in (scores.alpha, temperature))
    sinks = None if scores.sinks is None else scores.sinks.detach().float().contiguous()
    out = queries.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
    call.q, call.out, call.v = rows_at(queries), rows_at(out), v.data_ptr()
    call.v_batch, call.v_head = v.stride(0), v.stride(1)
    call.added = (Pairs * 2)(*(pairs for pairs, _ in added))
    call.alpha, call.temperature = alpha.data_ptr(), temperature.data_ptr()
    call.sinks = None if sinks is None else sinks.data_ptr()
    call.num_heads, call.num_queries, call.value_dim = q.shape[1], q.shape[2], v.shape[3]
    call.window, call.scaling, call.softcap = scores.window or 0, scores.scaling, scores.softcap or 0.0
    call.causal = scores.causal
    library().hf_sparse_attend_to_coded(ctypes.byref(call), torch.get_num_threads())
    return (out.to(q.dtype), RowsRead(*call.read)) if call.fine else None
