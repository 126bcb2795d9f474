"""Attention of a few queries over keys that are kept twice, as they are and in 8 bits, by the C++ kernel.

See cpp/coded_keys.hpp for the bound and the proof. No gradient flows through any of it.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from ._cpp_attention import rows_at
from ._cpp_few_queries import FewCall
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


class _CodedCall(FewCall):
    """``CodedCall`` of cpp/coded_keys.hpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("code", "group")),
        ("num_lines", ctypes.c_int64),
        ("read", ctypes.c_int64 * 3),
        ("fine", ctypes.c_int32),
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
    batch, heads, length, head_dim = keys.shape
    call = _CodedCall(
        k=rows_at(keys), num_sequences=batch, num_key_heads=heads, num_keys=length, head_dim=head_dim,
        dtype=DTYPES.index(keys.dtype), **_bytes_of(coded),
    )  # fmt: skip
    library().hf_sparse_code_keys(ctypes.byref(call), first, torch.get_num_threads())
    return bool(call.fine)


def _bytes_of(coded: CodedKeys) -> dict[str, int]:
    """The fields of a call that point to bytes."""
    return {"code": coded.code.data_ptr(), "group": coded.groups.data_ptr(), "num_lines": coded.code.shape[2]}


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
    call = _CodedCall(**_bytes_of(coded))
    out, _held = call.ask(q, k, v, scores, temperature)
    library().hf_sparse_attend_to_coded(ctypes.byref(call), torch.get_num_threads())
    return (out.to(q.dtype), RowsRead(*call.read)) if call.fine else None
