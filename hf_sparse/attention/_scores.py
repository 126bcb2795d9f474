"""Materialized attention scores: dot products, softcap, bias, mask and sinks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from ..functional.rows import lowest_visible
from ..tracing import in_graph
from ._call import AttentionCall


def attention_scores(
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """``softcap(scaling q k^T) + position_bias + mask``, masked entries at ``-inf``.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, key_value_heads, keys, head_dim).
        attention_mask: None, boolean (True is visible) or additive, broadcastable to (batch, heads, queries, keys).
            An additive value in the lower half of its dtype's range counts as masked: models write the smallest
            finite number there, which would make fully masked rows look like rows without a mask.
        scaling: factor on the dot products; None is ``head_dim ** -0.5``.
        softcap: bound on the size of scores, ``softcap * tanh(scores / softcap)``.
        position_bias: added to scores, broadcastable like the mask.
        causal: also mask later keys (only where the model gave no mask of its own).

    Returns:
        Scores (batch, heads, queries, keys) in the dtype of ``query``.
    """
    scores = grouped_product(query, key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    return biased_scores(scores, attention_mask, softcap, position_bias, causal)


def biased_scores(
    scores: Tensor,
    attention_mask: Tensor | None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """``attention_scores`` from given dot products ``scaling q k^T``."""
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if position_bias is not None:
        scores = scores + position_bias
    if causal:
        queries, keys = scores.shape[-2:]
        visible = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril(keys - queries)
        scores = scores.masked_fill(~visible, -torch.inf)
    if attention_mask is None:
        return scores
    if attention_mask.dtype == torch.bool:
        return scores.masked_fill(~attention_mask, -torch.inf)
    return torch.where(attention_mask > lowest_visible(attention_mask.dtype), scores + attention_mask, -torch.inf)


def grouped_product(x: Tensor, shared: Tensor) -> Tensor:
    """``x @ shared``, where heads of x share those of the other by groups; nothing is repeated, except in graphs.

    Args:
        x: (..., heads, queries, n).
        shared: (..., key_value_heads, n, m).

    Returns:
        The product (..., heads, queries, m).
    """
    groups = x.shape[-3] // shared.shape[-3] if shared.dim() > 2 else 1
    if groups <= 1:
        return x @ shared
    if in_graph():  # whose lengths may be open: a change of shape would put conditions on them
        return x @ shared.repeat_interleave(groups, dim=-3)
    together = (shared.shape[-3], groups * x.shape[-2])
    product = x.reshape(*x.shape[:-3], *together, x.shape[-1]) @ shared
    return product.reshape(*product.shape[:-3], *x.shape[-3:-1], shared.shape[-1])


def scores_of_call(call: AttentionCall) -> Tensor:
    """Scores (batch, heads, queries, keys, then a sink if there is one) of a call with a matrix for its mask."""
    assert not isinstance(call.mask, BlockMask)
    scores = attention_scores(
        call.query, call.key, call.mask, call.scaling, call.softcap, call.position_bias, call.causal
    )
    if call.indices is not None:
        shape = (scores.shape[0], 1, *scores.shape[2:])
        hidden = torch.ones(shape, dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(hidden.scatter(-1, call.indices.long()[:, None], False), -torch.inf)
    if call.s_aux is not None:
        return with_head_sinks(scores, call.s_aux)
    return scores if call.query_sinks is None else torch.cat([scores, call.query_sinks.to(scores.dtype)], dim=-1)


def with_head_sinks(scores: Tensor, s_aux: Tensor) -> Tensor:
    """Scores (batch, heads, queries, keys) with a last column for the sinks (heads,)."""
    sinks = s_aux.to(scores.dtype).view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
    return torch.cat([scores, sinks], dim=-1)
