"""The attention function that Transformers calls for a sparse model, registered with its mask function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from ._coverage import covered_weights
from ._credit import constrained_weights
from ._mask import PatternMask, pattern_mask
from ._scores import attention_scores
from ._site import SITE, weigh
from .backends import output_without_weights
from .backends._call import AttentionCall

NAME = "hf_sparse"


def sparse_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    indices: Tensor | None = None,
    is_causal: bool | None = None,
    fertility: float | Tensor | None = None,
    credit_cache: Any = None,
    target_mask: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention with the map that ``sparsify`` chose for ``module``, called by Transformers.

    Args:
        module: the attention module; it carries its site.
        query: (batch, heads, queries, head_dim).
        key: (batch, key_value_heads, keys, head_dim); heads are shared by groups where there are fewer.
        value: (batch, key_value_heads, keys, value_dim).
        attention_mask: see ``attention_scores``; or what ``pattern_mask`` made, or a ``BlockMask``.
        scaling: factor on the dot products; None is ``head_dim ** -0.5``.
        dropout: probability of dropping a weight while ``module`` trains.
        softcap: bound on scores (Gemma 2).
        position_bias: added to scores (T5).
        s_aux: (heads,) score of a sink that takes weight and gives nothing (gpt-oss).
        sinks: the same, one for each query: (batch, heads, queries, 1) (Inkling 2).
        indices: (batch, queries, k) keys an indexer selected; others are masked (DeepSeek V3.2).
        is_causal: only consulted where there is no mask.
        fertility: what was given to the model's forward, for constrained attention; see ``constrained_weights``.
        credit_cache: the cache that the module was given, for attention that follows what its keys received.
        target_mask: (batch, target length), 0 where the target is padding, for the same.
        **others: what else the model handed on. What its own eager attention would have heeded is refused.

    Returns:
        Output (batch, queries, heads, value_dim) and weights (batch, heads, queries, keys), which are None where a
        tier that never has them computed. See ``set_impl``.

    Raises:
        RuntimeError: ``module`` carries no site.
        ValueError: ``set_impl`` insists on a tier that cannot serve this call; or coverage where scores are capped.
        NotImplementedError: the model asks for something that would change the weights and is not honoured here.
    """
    site = module.__dict__.get(SITE)
    if site is None:
        raise RuntimeError(
            f"{type(module).__name__} was asked for sparse attention but never given a map: "
            "its configuration comes from a sparse model; call hf_sparse.sparsify(model, ...) on this one"
        )
    for name, given in others.items():
        if given is not None and name in site.heeded:
            raise NotImplementedError(
                f"{type(module).__name__} passes {name!r} to its attention, which hf_sparse does not honour; "
                "leave this model's attention as it is (attn=None)"
            )
    hidden, causal, window = attention_mask, attention_mask is None and bool(is_causal) and query.shape[2] > 1, None
    if isinstance(attention_mask, PatternMask):
        if attention_mask.is_known_for(query, key):
            hidden, causal, window = attention_mask.padding, attention_mask.causal, attention_mask.window
        else:
            hidden = attention_mask.written()
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    asked = others.get("output_attentions", getattr(getattr(module, "config", None), "output_attentions", False))
    output = output_without_weights(
        module,
        AttentionCall(
            query, key, value, hidden, scaling, causal, window, dropout if module.training else 0.0, softcap,
            position_bias, s_aux, sinks, indices, bool(asked),
        ),
    )  # fmt: skip
    if output is not None:
        return output, None
    if isinstance(attention_mask, PatternMask):
        attention_mask, causal = attention_mask.written(), False
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = attention_scores(query, key, attention_mask, scaling, softcap, position_bias, causal)
    if indices is not None:
        shape = (scores.shape[0], 1, *scores.shape[2:])
        hidden = torch.ones(shape, dtype=torch.bool, device=scores.device).scatter(-1, indices.long()[:, None], False)
        scores = scores.masked_fill(hidden, -torch.inf)
    if s_aux is not None:
        sinks = s_aux.to(scores.dtype).view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    if site.is_constrained:
        weights = constrained_weights(module, scores, key.shape[2], fertility, credit_cache, target_mask)
    elif site.has_coverage:
        if softcap is not None:
            raise ValueError(
                f"{type(module).__name__} caps its scores, and coverage is no part of what it caps; leave coverage out"
            )
        weights = covered_weights(module, query, scores, scaling, key.shape[2], credit_cache, target_mask)
    else:
        weights = weigh(module, scores)
    weights = weights[..., : key.shape[2]]
    if site.counts is not None:
        brought = {"fertility": fertility, "past_key_values": credit_cache, "target_mask": target_mask}
        site.counts.add(weights.detach(), query.shape[-1], **brought)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(NAME, sparse_attention)
# Without a mask function of the same name models would be called with no mask at all: no causality, no padding.
AttentionMaskInterface.register(NAME, pattern_mask)
