"""entmax attention of a few queries by the C++ kernel: values are read where their weight is not zero. No gradient."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._cpp_attention import LANES, Pairs, Rows, pairs_at, rows_at
from ._library import library
from ._limits import DTYPES
from .gpu.scores import Scores


class FewCall(ctypes.Structure):
    """``FewCall`` of cpp/few_queries.hpp, field by field."""

    _fields_ = (
        *((name, Rows) for name in ("q", "out", "k", "v")),
        ("added", Pairs * 2),
        *((name, ctypes.c_void_p) for name in ("alpha", "temperature", "sinks")),
        *(
            (name, ctypes.c_int64)
            for name in ("num_sequences", "num_heads", "num_key_heads", "num_queries", "num_keys")
        ),
        *((name, ctypes.c_int64) for name in ("head_dim", "value_dim", "window")),
        *((name, ctypes.c_float) for name in ("scaling", "softcap")),
        *((name, ctypes.c_int32) for name in ("causal", "dtype")),
    )

    def ask(self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, temperature: Tensor) -> tuple[Tensor, list[object]]:
        """Set all fields.

        Args:
            q: (batch, heads, queries, head_dim).
            k: (batch, key_heads, keys, head_dim), columns side by side.
            v: (batch, key_heads, keys, value_dim), likewise.
            scores: see ``cpp_attention_forward``.
            temperature: (heads,).

        Returns:
            The output to be written, (batch, heads, queries, value_dim) float32, in memory (batch, queries, heads,
            value_dim); and what the fields point to, which is to be kept until then.
        """
        batch, heads, num_queries, head_dim = q.shape
        num_keys = k.shape[2]
        queries = q.float().contiguous()
        out = queries.new_empty(batch, num_queries, heads, v.shape[3]).transpose(1, 2)
        self.q, self.out, self.k, self.v = rows_at(queries), rows_at(out), rows_at(k), rows_at(v)
        shape = (batch, heads, num_queries, num_keys)
        added = [pairs_at(x, shape) for x in (scores.bias, scores.mask) if x is not None]
        self.added = (Pairs * 2)(*(pairs for pairs, _ in added))
        alpha, temperature = scores.alpha.float().contiguous(), temperature.float().contiguous()
        sinks = None if scores.sinks is None else scores.sinks.float().contiguous()
        self.alpha, self.temperature = alpha.data_ptr(), temperature.data_ptr()
        self.sinks = None if sinks is None else sinks.data_ptr()
        self.num_sequences, self.num_heads, self.num_key_heads = batch, heads, k.shape[1]
        self.num_queries, self.num_keys, self.head_dim, self.value_dim = num_queries, num_keys, head_dim, v.shape[3]
        self.window, self.scaling, self.softcap = scores.window or 0, scores.scaling, scores.softcap or 0.0
        self.causal, self.dtype = scores.causal, DTYPES.index(k.dtype)
        return out, [queries, alpha, temperature, sinks, added]


def attend_few(q: Tensor, k: Tensor, v: Tensor, scores: Scores, temperature: Tensor) -> Tensor:
    """entmax attention, for which keys are read once for the queries that share them.

    Args:
        q: (batch, heads, queries, head_dim).
        k: (batch, key_heads, keys, head_dim), heads a multiple of key_heads.
        v: (batch, key_heads, keys, value_dim), all of float32, bfloat16 or float16.
        scores: see ``cpp_attention_forward``.
        temperature: (heads,), divides the scores, sinks included.

    Returns:
        (batch, heads, queries, value_dim) in the dtype of q, in memory (batch, queries, heads, value_dim).
    """
    value_dim = v.shape[3]
    missing = -value_dim % LANES
    if missing:
        v = pad(v, (0, missing))
    k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (k, v))
    call = FewCall()
    out, _held = call.ask(q, k, v, scores, temperature)
    library().hf_sparse_attend_few(ctypes.byref(call), torch.get_num_threads())
    return (out[..., :value_dim] if missing else out).to(q.dtype)
