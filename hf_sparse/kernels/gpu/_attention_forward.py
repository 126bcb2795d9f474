"""Flash entmax, forward: no score leaves the chip, and tiles without support are skipped.

A program holds one tile of queries of one head. It reads all keys once and lists the tiles that can hold support:
those with a score above a lower bound of its query's threshold. Newton's method runs on the listed tiles and strikes
out more of them as the bound rises. Values are read only for the tiles that remain.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ._newton import rise, slope_power
from ._tiles import HIDDEN, key_tiles, larger, peaks, store_rows, tile_rows, tile_scores


@triton.jit
def attend(
    Q, K, V, OUT, TAU, LIVE, LIST, ALPHA, SINKS, rules, BIAS, MASK, group, tolerance, max_steps,
    CAUSAL: tl.constexpr, EXPONENT: tl.constexpr, head_dim: tl.constexpr, value_dim: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """Writes OUT, the threshold TAU of each query in units of ``(alpha - 1) z``, and which tiles are LIVE."""
    tile = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    num_heads = tl.num_programs(1)
    scale = tl.load(ALPHA + head) - 1
    alpha = scale + 1
    exponent = 1 / scale
    key_head = head // group
    num_queries = rules.num_queries
    num_keys = rules.num_keys
    num_tiles = tl.cdiv(num_keys, KEYS)
    program = (batch * num_heads + head) * tl.num_programs(0) + tile
    LIST += program * num_tiles
    LIVE += program * num_tiles

    query = tile * QUERIES + tl.arange(0, QUERIES)
    q = tile_rows(Q, batch, head, query, num_queries, head_dim, HEAD)
    first, end = key_tiles(tile, rules, CAUSAL, QUERIES, KEYS)

    tau = tl.full((QUERIES,), HIDDEN, tl.float32)
    if SINKS is not None:
        sink = tl.load(SINKS + head).to(tl.float32) * scale
        tau = larger(tau, sink - 1)
    num_listed = 0
    for i in range(end - first):
        # Attention goes to a query's own tile and to the first of all: their threshold is a tight bound already.
        j = tl.where(i == 0, end - 1, tl.where(i == 1, first, end - i))
        key = j * KEYS + tl.arange(0, KEYS)
        k = tile_rows(K, batch, key_head, key, num_keys, head_dim, HEAD)
        scores, _ = tile_scores(q, k, query, key, batch, head, rules, BIAS, MASK, CAUSAL, QUERIES, KEYS)
        x = scores * scale
        peak = peaks(x)
        tau = larger(tau, peak - 1)
        if i < 2:
            for _step in range(4):
                u = tl.maximum(x - tau[:, None], 0.0)
                slopes = slope_power(u, exponent, EXPONENT)
                tau += rise(tl.sum(slopes * u, 1), tl.sum(slopes, 1), alpha, EXPONENT)
        tl.store(LIST + num_listed, j)
        num_listed += tl.max((peak > tau).to(tl.int32), 0)

    going = num_listed > 0
    num_steps = 0
    while going:
        tl.debug_barrier()
        mass = tl.zeros((QUERIES,), tl.float32)
        slope = tl.zeros((QUERIES,), tl.float32)
        num_kept = 0
        for i in range(num_listed):
            j = tl.load(LIST + i)
            key = j * KEYS + tl.arange(0, KEYS)
            k = tile_rows(K, batch, key_head, key, num_keys, head_dim, HEAD)
            scores, _ = tile_scores(q, k, query, key, batch, head, rules, BIAS, MASK, CAUSAL, QUERIES, KEYS)
            u = tl.maximum(scores * scale - tau[:, None], 0.0)
            slopes = slope_power(u, exponent, EXPONENT)
            mass += tl.sum(slopes * u, 1)
            slope += tl.sum(slopes, 1)
            # All threads have read entry i before this maximum is known, and the store overwrites no entry after i.
            found = tl.max((tl.max(u, 1) > 0).to(tl.int32), 0)
            tl.store(LIST + num_kept, j)
            num_kept += found
        num_listed = num_kept
        if SINKS is not None:
            u_sink = tl.maximum(sink - tau, 0.0)
            slope_sink = slope_power(u_sink, exponent, EXPONENT)
            mass += slope_sink * u_sink
            slope += slope_sink
        risen = tau + rise(mass, slope, alpha, EXPONENT)
        unsolved = (mass > 1 + tolerance) & (risen > tau) & (query < num_queries)
        tau = risen
        num_steps += 1
        going = (tl.max(unsolved.to(tl.int32), 0) > 0) & (num_steps < max_steps)

    tl.debug_barrier()
    out = tl.zeros((QUERIES, VALUE), tl.float32)
    mass = tl.zeros((QUERIES,), tl.float32)
    for i in range(num_listed):
        j = tl.load(LIST + i)
        key = j * KEYS + tl.arange(0, KEYS)
        k = tile_rows(K, batch, key_head, key, num_keys, head_dim, HEAD)
        scores, _ = tile_scores(q, k, query, key, batch, head, rules, BIAS, MASK, CAUSAL, QUERIES, KEYS)
        u = tl.maximum(scores * scale - tau[:, None], 0.0)
        p = slope_power(u, exponent, EXPONENT) * u
        mass += tl.sum(p, 1)
        v = tile_rows(V, batch, key_head, key, num_keys, value_dim, VALUE)
        out += tl.dot(p.to(v.dtype), v, input_precision="ieee")
        tl.store(LIVE + j, tl.max((tl.max(u, 1) > 0).to(tl.int8), 0))
    if SINKS is not None:
        u_sink = tl.maximum(sink - tau, 0.0)
        mass += slope_power(u_sink, exponent, EXPONENT) * u_sink
    out = out / tl.where(mass > 0, mass, 1.0)[:, None]
    # A NaN or infinite score turns its row, and no other, into NaN.
    out = tl.where((tau < float("inf"))[:, None], out, float("nan"))
    store_rows(OUT, out, batch, head, query, num_queries, value_dim, VALUE)
    TAU += (batch * num_heads + head) * num_queries
    # Above every score where no key is visible: the backward finds no support there.
    tl.store(TAU + query, tl.where(mass > 0, tau, -HIDDEN), mask=query < num_queries)
