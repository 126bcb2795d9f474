"""One tile of attention scores: queries of one head against some keys, as the device functions all kernels share.

A tensor comes with its strides, and what belongs together is one argument: named tuples, whose fields are compiled as
arguments of their own. An argument or field that is None is left out when the kernel is compiled. Triton 3.6 loses
constants in tuples within tuples, so that there are none.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

# The score of a hidden key: below every other, and finite, so that no difference of two of them is NaN.
HIDDEN = tl.constexpr(-1.0e30)
# The lowest threshold: above a hidden score times alpha - 1, and below every other score.
LOWEST = tl.constexpr(-1.0e27)
# The interpreter runs custom reductions entry by entry, far too slowly.
_INTERPRETED = tl.constexpr(knobs.runtime.interpret)


class RowTensor(NamedTuple):
    """A tensor (batch, heads, rows, columns), columns side by side in memory, with its strides."""

    pointer: Tensor
    batch: int
    head: int
    row: int


class PairTensor(NamedTuple):
    """A tensor (batch, heads, queries, keys) with its strides."""

    pointer: Tensor
    batch: int
    head: int
    query: int
    key: int


class Rules(NamedTuple):
    """The numbers by which scores follow from dot products; see ``Scores``.

    Attributes:
        num_queries: queries of a head.
        num_keys: keys of a head.
        scaling: factor on the dot products.
        softcap: bound of the scores.
        window: a query sees its own key and the window - 1 before it.
        lowest: a key is hidden where an added mask is not above it.
    """

    num_queries: int
    num_keys: int
    scaling: float
    softcap: float | None
    window: int | None
    lowest: float


def row_tensor(x: Tensor) -> RowTensor:
    """x (batch, heads, rows, columns) as an argument of a kernel."""
    return RowTensor(x, *x.stride()[:3])


def pair_tensor(x: Tensor | None) -> PairTensor | None:
    """x (batch, heads, queries, keys) as an argument of a kernel."""
    return None if x is None else PairTensor(x, *x.stride())


@triton.jit
def query_tile():
    """The tile of queries, the head and the sequence of this program, and its head counted over all sequences."""
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    return tl.program_id(0), head, batch, batch * tl.num_programs(1) + head


@triton.jit
def larger(a, b):
    """The larger of two, NaN where one of them is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def peaks(x):
    """The largest entry of each row, NaN where there is one, which ``tl.max`` ignores."""
    if _INTERPRETED:
        return tl.where(tl.max((x != x).to(tl.int32), 1) > 0, float("nan"), tl.max(x, 1))
    return tl.reduce(x, 1, larger)


@triton.jit
def _of_head(x, batch, head):
    """The first place of one head."""
    return x.pointer + batch * x.batch + head * x.head


@triton.jit
def _row_places(x, batch, head, index, num_rows, width, WIDTH: tl.constexpr):
    """Places (len(index), WIDTH) of the entries of rows ``index`` of a head, and a mask of those inside the tensor."""
    column = tl.arange(0, WIDTH)
    inside = (index < num_rows)[:, None] & (column < width)[None, :]
    return _of_head(x, batch, head) + index.to(tl.int64)[:, None] * x.row + column[None, :], inside


@triton.jit
def tile_rows(x, batch, head, index, num_rows, width, WIDTH: tl.constexpr):
    """Rows ``index`` of a head of ``RowTensor`` x, padded with zeros to (len(index), WIDTH)."""
    place, inside = _row_places(x, batch, head, index, num_rows, width, WIDTH)
    return tl.load(place, mask=inside, other=0.0)


@triton.jit
def store_rows(x, rows, batch, head, index, num_rows, width, WIDTH: tl.constexpr):
    """Write what ``tile_rows`` would read, in the dtype of x; the padding is left out."""
    place, inside = _row_places(x, batch, head, index, num_rows, width, WIDTH)
    tl.store(place, rows.to(x.pointer.dtype.element_ty), mask=inside)


@triton.jit
def _pair_places(x, batch, head, query, key):
    """Places (len(query), len(key)) of pairs of a head in ``PairTensor`` x."""
    place = query[:, None].to(tl.int64) * x.query + key[None, :].to(tl.int64) * x.key
    return _of_head(x, batch, head) + place


@triton.jit
def tanh_of(v):
    """tanh, near zero by its series: there ``2 sigmoid(2 v) - 1`` has few digits left."""
    s = v * v
    series = v + v * s * (-1 / 3 + s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835))))
    return tl.where(s < 0.09, series, 2 * tl.sigmoid(2 * v) - 1)


@triton.jit
def tile_scores(
    q, k, query, key, batch, head, rules, BIAS, MASK, CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr
):
    """Scores (QUERIES, KEYS), hidden ones ``HIDDEN``, and their derivative by the dot product over ``scaling``.

    Args:
        q: (QUERIES, head) rows ``query``, a range of indices.
        k: (KEYS, head) rows ``key``, a range of indices.
        rules: ``Rules``.
        BIAS: ``PairTensor`` added to the scores, or None.
        MASK: ``PairTensor`` of int8, not zero where a key is visible, or added to the scores; or None.
        CAUSAL: the last query sees all keys, each one before it one less.
    """
    num_queries = rules.num_queries
    num_keys = rules.num_keys
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * rules.scaling
    slope = 1.0
    if rules.softcap is not None:
        tanh = tanh_of(scores / rules.softcap)
        scores = rules.softcap * tanh
        slope = 1 - tanh * tanh
    # The last query stands beside the last key.
    offset = num_keys - num_queries
    query_tile = tl.min(query, 0)
    key_tile = tl.min(key, 0)
    on_edge = (key_tile + KEYS > num_keys) | (query_tile + QUERIES > num_queries)
    if CAUSAL:
        on_edge = on_edge | (key_tile + KEYS - 1 > query_tile + offset)
    if rules.window is not None:
        on_edge = on_edge | (query_tile + QUERIES - 1 + offset - key_tile >= rules.window)
    inside = (query < num_queries)[:, None] & (key < num_keys)[None, :]
    if BIAS is not None:
        bias = tl.load(_pair_places(BIAS, batch, head, query, key), mask=inside, other=0.0)
        scores += bias.to(tl.float32)
    if MASK is not None:
        mask = tl.load(_pair_places(MASK, batch, head, query, key), mask=inside, other=0)
        if mask.dtype == tl.int8:
            scores = tl.where(mask != 0, scores, HIDDEN)
        else:
            scores = tl.where(mask > rules.lowest, scores + mask.to(tl.float32), HIDDEN)
    if on_edge:
        visible = inside
        if CAUSAL:
            visible = visible & (query[:, None] + offset >= key[None, :])
        if rules.window is not None:
            visible = visible & (query[:, None] + offset - key[None, :] < rules.window)
        scores = tl.where(visible, scores, HIDDEN)
    return scores, slope


@triton.jit
def key_tiles(tile, rules, CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """The first key tile that a tile of queries can see, and the one after the last."""
    offset = rules.num_keys - rules.num_queries
    start = 0
    end = rules.num_keys
    if CAUSAL:
        end = tl.minimum(end, (tile + 1) * QUERIES + offset)
    if rules.window is not None:
        start = tl.maximum(start, tile * QUERIES + offset - rules.window + 1)
    return start // KEYS, tl.cdiv(tl.maximum(end, 0), KEYS)
