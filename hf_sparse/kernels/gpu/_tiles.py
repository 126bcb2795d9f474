"""One tile of attention scores: queries of one head against some keys, as the device function all kernels share."""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

# The score of a hidden key: below every other, and finite, so that no difference of two of them is NaN.
HIDDEN = tl.constexpr(-1.0e30)
# The interpreter runs a reduction of one's own entry by entry, far too slowly; its other maxima all keep a NaN.
_INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def larger(a, b):
    """The larger of two, NaN where one of them is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def peaks(x):
    """The largest entry of each row, NaN where there is one: ``tl.max`` passes over NaN on a GPU."""
    return tl.max(x, 1) if _INTERPRETED else tl.reduce(x, 1, larger)


@triton.jit
def tile_rows(X, index, num_rows, stride, width, WIDTH: tl.constexpr):
    """Rows ``index`` of a matrix whose columns lie side by side, padded with zeros to (len(index), WIDTH)."""
    column = tl.arange(0, WIDTH)
    inside = (index < num_rows)[:, None] & (column < width)[None, :]
    return tl.load(X + index.to(tl.int64)[:, None] * stride + column[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(X, rows, index, num_rows, stride, width, WIDTH: tl.constexpr):
    """Write what ``tile_rows`` would read, in the dtype of the matrix; the padding is left out."""
    column = tl.arange(0, WIDTH)
    inside = (index < num_rows)[:, None] & (column < width)[None, :]
    tl.store(X + index.to(tl.int64)[:, None] * stride + column[None, :], rows.to(X.dtype.element_ty), mask=inside)


@triton.jit
def score_rules(
    batch, head, BIAS, bias_batch, bias_head, bias_query, bias_key, MASK, mask_batch, mask_head, mask_query, mask_key,
    num_queries, num_keys, scaling, softcap, window, lowest, KIND: tl.constexpr,
):  # fmt: skip
    """What ``tile_scores`` has to know about one head.

    Args:
        BIAS: added to the scores, with its strides.
        MASK: as KIND says, with its strides.
        window: a query sees its own and the window - 1 keys before it.
        KIND: (CAUSAL, WINDOWED, CAPPED, BIASED, MASKED). MASKED 1: the mask is not zero where a key is visible; 2: it
            is added to the scores, and hidden where at most ``lowest``.
    """
    if KIND[3]:
        BIAS += batch * bias_batch + head * bias_head
    if KIND[4]:
        MASK += batch * mask_batch + head * mask_head
    return (
        BIAS, bias_query, bias_key, MASK, mask_query, mask_key, num_queries, num_keys, scaling, softcap, window,
        lowest,
    )  # fmt: skip


@triton.jit
def tile_scores(q, k, query, key, rules, KIND: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """Scores (QUERIES, KEYS), hidden ones ``HIDDEN``, and their derivative by the dot product over ``scaling``.

    Args:
        q: (QUERIES, head) rows ``query``, a range of indices.
        k: (KEYS, head) rows ``key``, a range of indices.
        rules: what ``score_rules`` returned.
        KIND: as given to it.
    """
    BIAS, bias_query, bias_key, MASK, mask_query, mask_key, num_queries, num_keys, scaling, softcap, window, lowest = (
        rules
    )
    CAUSAL: tl.constexpr = KIND[0]
    WINDOWED: tl.constexpr = KIND[1]
    CAPPED: tl.constexpr = KIND[2]
    BIASED: tl.constexpr = KIND[3]
    MASKED: tl.constexpr = KIND[4]
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling
    slope = 1.0
    if CAPPED:
        tanh = 2 * tl.sigmoid(2 * scores / softcap) - 1
        scores = softcap * tanh
        slope = 1 - tanh * tanh
    # The last query stands beside the last key.
    offset = num_keys - num_queries
    query_tile = tl.min(query, 0)
    key_tile = tl.min(key, 0)
    on_edge = (key_tile + KEYS > num_keys) | (query_tile + QUERIES > num_queries)
    if CAUSAL:
        on_edge = on_edge | (key_tile + KEYS - 1 > query_tile + offset)
    if WINDOWED:
        on_edge = on_edge | (query_tile + QUERIES - 1 + offset - key_tile >= window)
    inside = (query < num_queries)[:, None] & (key < num_keys)[None, :]
    if BIASED:
        place = query[:, None].to(tl.int64) * bias_query + key[None, :].to(tl.int64) * bias_key
        scores += tl.load(BIAS + place, mask=inside, other=0.0).to(tl.float32)
    if MASKED:
        place = query[:, None].to(tl.int64) * mask_query + key[None, :].to(tl.int64) * mask_key
        mask = tl.load(MASK + place, mask=inside, other=0)
        if MASKED == 1:
            scores = tl.where(mask != 0, scores, HIDDEN)
        else:
            scores = tl.where(mask > lowest, scores + mask.to(tl.float32), HIDDEN)
    if on_edge:
        visible = inside
        if CAUSAL:
            visible = visible & (query[:, None] + offset >= key[None, :])
        if WINDOWED:
            visible = visible & (query[:, None] + offset - key[None, :] < window)
        scores = tl.where(visible, scores, HIDDEN)
    return scores, slope


@triton.jit
def key_tiles(tile, num_queries, num_keys, window, KIND: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """The first key tile that a tile of queries can see, and the one after the last."""
    offset = num_keys - num_queries
    start = 0
    end = num_keys
    if KIND[0]:
        end = tl.minimum(end, (tile + 1) * QUERIES + offset)
    if KIND[1]:
        start = tl.maximum(start, tile * QUERIES + offset - window + 1)
    return start // KEYS, tl.cdiv(tl.maximum(end, 0), KEYS)
