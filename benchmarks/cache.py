"""One decoding step of attention over a long cache: softmax over all keys, entmax over all, entmax that reads few."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from hf_sparse import ScreenedCache
from hf_sparse.attention.interface import sparse_attention
from hf_sparse.attention.site import SITE, AttentionSite
from hf_sparse.config import MapConfig

from ._case import Case
from ._impls import kernel

BASELINE = "scaled_dot_product_attention"
# As in SmolLM2-135M: heads share keys by threes.
HEADS, KEY_HEADS, HEAD_DIM = 9, 3, 64
# Of queries drawn from a normal distribution: some hundredths of the keys in the support, some thousandths.
SIZES = {"wide": 0.5, "narrow": 1.5}


def step(length: int, kind: str, dtype: torch.dtype = torch.float32) -> Case:
    """The attention of one layer for one query over ``length`` keys that are in a cache already."""
    generator = torch.Generator().manual_seed(0)
    q = (SIZES[kind] * torch.randn(1, HEADS, 1, HEAD_DIM, generator=generator)).to(dtype)
    k, v = torch.randn(2, 1, KEY_HEADS, length, HEAD_DIM, generator=generator).to(dtype).unbind()
    module = nn.Module()
    module.__dict__[SITE] = AttentionSite("attn", "decoder", MapConfig.parse("entmax15", "attn"))
    candidates: dict[str, Callable[[], object]] = {
        BASELINE: partial(scaled_dot_product_attention, q, k, v, enable_gqa=True),
        "entmax15, all keys": partial(_attended, module, q, k, v),
    }
    share = ""
    if kernel():
        cache = ScreenedCache()
        keys, values = cache.update(k, v, 0)
        candidates["entmax15, screened"] = partial(_attended, module, q, keys, values, cache)
        candidates["entmax15, screened"]()
        share = f", {cache.reads[0].share:.0%} of the bytes of float16 read"
    return Case(
        title=f"a step over {length} keys, {kind} support, {HEADS} heads, {KEY_HEADS} of keys, "
        f"{str(dtype).removeprefix('torch.')}{share}, one thread",
        baseline=BASELINE,
        candidates=candidates,
        targets={"entmax15, screened": 1.0},
        threads=1,
    )


@torch.no_grad()
def _attended(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, _cache: ScreenedCache | None = None) -> Tensor:
    """The output of attention; keys find their cache as long as somebody holds it, as this call does."""
    return sparse_attention(module, q, k, v)[0]


CASES = [partial(step, length, kind) for length in (128, 1024, 4096, 16384, 65536) for kind in SIZES]
CASES.append(partial(step, 16384, "wide", torch.bfloat16))
QUICK = [partial(step, 64, "wide")]
