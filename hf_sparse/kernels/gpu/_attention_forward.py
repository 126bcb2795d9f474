"""Flash entmax, forward: no score leaves the chip, and tiles without support are skipped.

A program holds one tile of queries of one head. The first kernel reads all keys once and lists the tiles that can hold
support: those with a score above a lower bound of its query's threshold, which rises with every such tile. Newton's
method runs on the listed tiles and strikes out more of them as the bound rises. The second kernel reads keys and
values of the tiles that remain. They are two because the first, without values, leaves room for twice as many programs
at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ._newton import joined, norm_rise, rise, slope_power
from ._tiles import HIDDEN, LOWEST, key_tiles, larger, peaks, query_tile, store_rows, tile_rows, tile_scores


@triton.jit
def find_thresholds(
    Q, K, TAU, LIST, COUNT, ALPHA, SINKS, rules, BIAS, MASK, group, tolerance, max_steps,
    CAUSAL: tl.constexpr, EXPONENT: tl.constexpr, head_dim: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Writes TAU, the threshold of each query in units of ``(alpha - 1) z``, and a LIST of COUNT tiles with support.

    tau is a lower bound of the threshold throughout.
    """
    tile, head, batch, of_all = query_tile()
    scale = tl.load(ALPHA + head) - 1
    alpha = scale + 1
    exponent = 1 / scale
    key_head = head // group
    num_queries = rules.num_queries
    num_keys = rules.num_keys
    num_tiles = tl.cdiv(num_keys, KEYS)
    program = of_all * tl.num_programs(0) + tile
    LIST += program * num_tiles

    query = tile * QUERIES + tl.arange(0, QUERIES)
    q = tile_rows(Q, batch, head, query, num_queries, head_dim, HEAD)
    first, end = key_tiles(tile, rules, CAUSAL, QUERIES, KEYS)

    # At tau + d the P-norm of the excesses seen so far is at least norm - fall d, its tangent: it is convex. Hidden
    # scores stay far below every tau, since compilers may compute an excess of theirs to other digits than tau.
    tau = tl.full((QUERIES,), LOWEST, tl.float32)
    norm = tl.zeros((QUERIES,), tl.float32)
    fall = tl.zeros((QUERIES,), tl.float32)
    if SINKS is not None:
        sink = tl.load(SINKS + head).to(tl.float32) * scale
        tau = larger(tau, sink - 1)
        norm += 1
        fall += 1
    num_listed = 0
    for i in range(end - first):
        # Attention goes to a query's own tile and to the first of all: their threshold is a tight bound already.
        j = tl.where(i == 0, end - 1, tl.where(i == 1, first, end - i))
        key = j * KEYS + tl.arange(0, KEYS)
        k = tile_rows(K, batch, key_head, key, num_keys, head_dim, HEAD)
        scores, _ = tile_scores(q, k, query, key, batch, head, rules, BIAS, MASK, CAUSAL, QUERIES, KEYS)
        x = scores * scale
        peak = peaks(x)
        raised = larger(tau, peak - 1)
        norm = tl.maximum(norm - fall * (raised - tau), 0.0)
        tau = raised
        if tl.max((peak > tau).to(tl.int32), 0) > 0:
            joint, steepness = joined(norm, fall, x, tau, alpha, exponent, EXPONENT)
            step = norm_rise(joint, steepness)
            norm = tl.maximum(norm - fall * step, 0.0)
            tau += step
            norm, fall = joined(norm, fall, x, tau, alpha, exponent, EXPONENT)
            tau += norm_rise(norm, fall)
            norm = tl.minimum(norm, 1.0) * (1 - 4e-7)  # less than it is, by more than rounding errors
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

    tl.store(COUNT + program, num_listed)
    tl.store(TAU + of_all * num_queries + query, tau, mask=query < num_queries)


@triton.jit
def attend(
    Q, K, V, OUT, TAU, LIVE, LIST, COUNT, ALPHA, SINKS, rules, BIAS, MASK, group,
    CAUSAL: tl.constexpr, EXPONENT: tl.constexpr, head_dim: tl.constexpr, value_dim: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """Writes OUT and which tiles are LIVE; raises TAU above every score of a query that sees no key."""
    tile, head, batch, of_all = query_tile()
    scale = tl.load(ALPHA + head) - 1
    exponent = 1 / scale
    key_head = head // group
    num_queries = rules.num_queries
    num_keys = rules.num_keys
    num_tiles = tl.cdiv(num_keys, KEYS)
    program = of_all * tl.num_programs(0) + tile
    LIST += program * num_tiles
    LIVE += program * num_tiles
    num_listed = tl.load(COUNT + program)
    TAU += of_all * num_queries

    query = tile * QUERIES + tl.arange(0, QUERIES)
    q = tile_rows(Q, batch, head, query, num_queries, head_dim, HEAD)
    tau = tl.load(TAU + query, mask=query < num_queries, other=-HIDDEN)
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
        u_sink = tl.maximum(tl.load(SINKS + head).to(tl.float32) * scale - tau, 0.0)
        mass += slope_power(u_sink, exponent, EXPONENT) * u_sink
    out = out / tl.where(mass > 0, mass, 1.0)[:, None]
    # A NaN or infinite score turns its row, and no other, into NaN.
    out = tl.where((tau < float("inf"))[:, None], out, float("nan"))
    store_rows(OUT, out, batch, head, query, num_queries, value_dim, VALUE)
    # Above every score where no key is visible: the backward finds no support there.
    tl.store(TAU + query, tl.where(mass > 0, tau, -HIDDEN), mask=query < num_queries)
