"""Flash entmax, backward: over live tiles only, from the thresholds of the forward.

With ``w = p^(2 - alpha)`` and ``g_ij = <dO_i, v_j>`` the derivative in the scores of query i is
``w_ij (g_ij - delta_i)``, where ``delta_i = sum_j w_ij g_ij / sum_j w_ij`` (Peters et al. 2019, Proposition 2). The
derivative in alpha is ``sum_j g_ij dp_ij/dalpha`` (Correia et al. 2019, Proposition 1). With ``p = w u`` and
``f = u - u log u`` that is ``sum_j w_ij (g_ij - delta_i) (f_ij - mean_i) / (alpha - 1)^2``, where ``mean_i`` is the
mean of f under the weights w. Differences from means keep their digits where all keys weigh nearly alike; differences
of sums over p and ``p log p`` do not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ._newton import slope_power
from ._tiles import query_tile, store_rows, tile_rows, tile_scores


@triton.jit
def _f(u):
    """``u - u log u``, 0 at 0."""
    return u - u * tl.log(tl.where(u > 0, u, 1.0))


@triton.jit
def differentiate_queries(
    Q, K, V, TAU, DOUT, DQ, DELTA, DALPHA, LIST, COUNT, ALPHA, SINKS, rules, BIAS, MASK, group,
    CAUSAL: tl.constexpr, EXPONENT: tl.constexpr, head_dim: tl.constexpr, value_dim: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """One tile of queries per program: DELTA, DQ and, where alpha is learned, DALPHA of each query."""
    tile, head, batch, of_all = query_tile()
    scale = tl.load(ALPHA + head) - 1
    exponent = 1 / scale
    key_head = head // group
    num_queries = rules.num_queries
    num_keys = rules.num_keys
    program = of_all * tl.num_programs(0) + tile
    LIST += program * tl.cdiv(num_keys, KEYS)
    num_listed = tl.load(COUNT + program)
    of_rows = of_all * num_queries

    query = tile * QUERIES + tl.arange(0, QUERIES)
    q = tile_rows(Q, batch, head, query, num_queries, head_dim, HEAD)
    dout = tile_rows(DOUT, batch, head, query, num_queries, value_dim, VALUE)
    tau = tl.load(TAU + of_rows + query, mask=query < num_queries, other=1.0e30)

    total = tl.zeros((QUERIES,), tl.float32)
    weighted = tl.zeros((QUERIES,), tl.float32)
    mean = tl.zeros((QUERIES,), tl.float32)
    for i in range(num_listed):
        key = tl.load(LIST + i) * KEYS + tl.arange(0, KEYS)
        k = tile_rows(K, batch, key_head, key, num_keys, head_dim, HEAD)
        v = tile_rows(V, batch, key_head, key, num_keys, value_dim, VALUE)
        scores, _ = tile_scores(q, k, query, key, batch, head, rules, BIAS, MASK, CAUSAL, QUERIES, KEYS)
        u = tl.maximum(scores * scale - tau[:, None], 0.0)
        w = slope_power(u, exponent, EXPONENT)
        g = tl.dot(dout, tl.trans(v), input_precision="ieee")
        total += tl.sum(w, 1)
        weighted += tl.sum(w * g, 1)
        if DALPHA is not None:
            mean += tl.sum(w * _f(u), 1)
    if SINKS is not None:
        u_sink = tl.maximum(tl.load(SINKS + head).to(tl.float32) * scale - tau, 0.0)
        w_sink = slope_power(u_sink, exponent, EXPONENT)
        total += w_sink
        mean += w_sink * _f(u_sink)
    total = tl.where(total > 0, total, 1.0)
    delta = weighted / total
    mean = mean / total
    tl.store(DELTA + of_rows + query, delta, mask=query < num_queries)
    dalpha = tl.zeros((QUERIES,), tl.float32)
    if SINKS is not None:
        dalpha -= w_sink * delta * (_f(u_sink) - mean)
    dq = tl.zeros((QUERIES, HEAD), tl.float32)
    for i in range(num_listed):
        key = tl.load(LIST + i) * KEYS + tl.arange(0, KEYS)
        k = tile_rows(K, batch, key_head, key, num_keys, head_dim, HEAD)
        v = tile_rows(V, batch, key_head, key, num_keys, value_dim, VALUE)
        scores, slope = tile_scores(q, k, query, key, batch, head, rules, BIAS, MASK, CAUSAL, QUERIES, KEYS)
        u = tl.maximum(scores * scale - tau[:, None], 0.0)
        dp = slope_power(u, exponent, EXPONENT) * (tl.dot(dout, tl.trans(v), input_precision="ieee") - delta[:, None])
        ds = dp * slope
        if DALPHA is not None:
            dalpha += tl.sum(dp * (_f(u) - mean[:, None]), 1)
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    store_rows(DQ, dq * rules.scaling, batch, head, query, num_queries, head_dim, HEAD)
    if DALPHA is not None:
        tl.store(DALPHA + of_rows + query, dalpha / (scale * scale), mask=query < num_queries)


@triton.jit
def differentiate_keys(
    Q, K, V, TAU, DOUT, DELTA, DK, DV, LIST, COUNT, ALPHA, rules, BIAS, MASK, group,
    CAUSAL: tl.constexpr, EXPONENT: tl.constexpr, head_dim: tl.constexpr, value_dim: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """One tile of keys per program, for all heads that share it: DK and DV, always summed in the same order."""
    tile = tl.program_id(0)
    key_head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    num_heads = tl.num_programs(1) * group
    num_queries = rules.num_queries
    num_keys = rules.num_keys
    num_tiles = tl.cdiv(num_queries, QUERIES)

    key = tile * KEYS + tl.arange(0, KEYS)
    k = tile_rows(K, batch, key_head, key, num_keys, head_dim, HEAD)
    v = tile_rows(V, batch, key_head, key, num_keys, value_dim, VALUE)
    dk = tl.zeros((KEYS, HEAD), tl.float32)
    dv = tl.zeros((KEYS, VALUE), tl.float32)
    for member in range(group):
        head = key_head * group + member
        scale = tl.load(ALPHA + head) - 1
        exponent = 1 / scale
        program = (batch * num_heads + head) * tl.num_programs(0) + tile
        of_rows = (batch * num_heads + head) * num_queries
        for i in range(tl.load(COUNT + program)):
            query = tl.load(LIST + program * num_tiles + i) * QUERIES + tl.arange(0, QUERIES)
            q = tile_rows(Q, batch, head, query, num_queries, head_dim, HEAD)
            dout = tile_rows(DOUT, batch, head, query, num_queries, value_dim, VALUE)
            tau = tl.load(TAU + of_rows + query, mask=query < num_queries, other=1.0e30)
            delta = tl.load(DELTA + of_rows + query, mask=query < num_queries, other=0.0)
            scores, slope = tile_scores(q, k, query, key, batch, head, rules, BIAS, MASK, CAUSAL, QUERIES, KEYS)
            u = tl.maximum(scores * scale - tau[:, None], 0.0)
            w = slope_power(u, exponent, EXPONENT)
            g = tl.dot(dout, tl.trans(v), input_precision="ieee")
            dv += tl.dot(tl.trans((w * u).to(dout.dtype)), dout, input_precision="ieee")
            ds = w * (g - delta[:, None]) * slope
            dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision="ieee")
    store_rows(DK, dk * rules.scaling, batch, key_head, key, num_keys, head_dim, HEAD)
    store_rows(DV, dv, batch, key_head, key, num_keys, value_dim, VALUE)
