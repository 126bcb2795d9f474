"""The scores of attention written down: dot products, softcap, bias and mask."""

from __future__ import annotations

import torch
from torch import Tensor


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
        key: (batch, heads, keys, head_dim).
        attention_mask: None, boolean (True is visible) or additive, broadcastable to (batch, heads, queries, keys).
            An additive value in the lower half of its dtype's range counts as masked: models write the smallest
            finite number there, which would leave fully masked rows looking like rows without a mask.
        scaling: factor on the dot products; None is ``head_dim ** -0.5``.
        softcap: bound on the size of scores, ``softcap * tanh(scores / softcap)``.
        position_bias: additive, as the mask.
        causal: mask later keys too (only where the model gave no mask of its own).

    Returns:
        Scores (batch, heads, queries, keys) in the dtype of ``query``.
    """
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    return biased_scores(scores, attention_mask, softcap, position_bias, causal)


def biased_scores(
    scores: Tensor,
    attention_mask: Tensor | None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """What ``attention_scores`` makes of the dot products ``scaling q k^T``."""
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
    lowest = torch.finfo(attention_mask.dtype).min
    return torch.where(attention_mask > lowest / 2, scores + attention_mask, -torch.inf)
