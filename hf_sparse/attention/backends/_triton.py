"""entmax attention by this package's Triton kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from ...functional import entmax
from ...functional.newton import exponent_of
from ...functional.rows import is_readable
from ...kernels import (
    LOWEST_ALPHA,
    attention_alpha_problem,
    triton_attention,
    triton_attention_problem,
    triton_decode_scores,
    triton_decode_values,
)
from .._call import AttentionCall
from .._scores import biased_scores, with_head_sinks
from ._prepared import needs_gradient


def triton_problem(call: AttentionCall, alpha: float | Tensor) -> str | None:
    """The reason why the kernels cannot serve a call of entmax, or None."""
    if isinstance(call.mask, BlockMask):
        return "takes a matrix for a mask, was a BlockMask"
    problem = None
    if not torch.is_tensor(alpha) or is_readable(alpha):
        low, high = map(float, alpha.detach().aminmax()) if torch.is_tensor(alpha) else (alpha, alpha)
        problem = attention_alpha_problem(low, high)
    return problem or triton_attention_problem(call.query, call.key, call.value)


def triton_output(call: AttentionCall, alpha: float | Tensor) -> Tensor:
    """The output (batch, heads, queries, value_dim) of a call that the kernels can serve."""
    if call.query.shape[2] == 1 and not torch.is_tensor(alpha) and alpha >= LOWEST_ALPHA and not _is_trained(call):
        return _one_query(call, alpha)
    return triton_attention(
        call.query, call.key, call.value, alpha, 0.0 if torch.is_tensor(alpha) else exponent_of(alpha),
        scaling=call.scaling, causal=call.causal, window=call.window, softcap=call.softcap, bias=call.position_bias,
        mask=_matrix(call), sinks=call.s_aux,
    )  # fmt: skip


def _one_query(call: AttentionCall, alpha: float) -> Tensor:
    """Decoding (batch, heads, 1, value_dim): the scores of one query are a row, and few values have weight."""
    scores = triton_decode_scores(call.query, call.key, call.scaling)
    scores = biased_scores(scores, _matrix(call), call.softcap, call.position_bias)
    if call.s_aux is not None:
        scores = with_head_sinks(scores, call.s_aux)
    return triton_decode_values(entmax(scores, alpha, impl="triton"), call.value)


def _matrix(call: AttentionCall) -> Tensor | None:
    assert not isinstance(call.mask, BlockMask)  # refused by triton_problem
    return call.mask


def _is_trained(call: AttentionCall) -> bool:
    return any(map(needs_gradient, (call.query, call.key, call.value)))
