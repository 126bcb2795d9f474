"""Attention of the candidates, and inputs whose supports are as dense as is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask

from hf_sparse.attention import flex_entmax_attention
from hf_sparse.functional import entmax15
from hf_sparse.kernels import triton_attention, triton_decode_scores, triton_decode_values
from hf_sparse.kernels.gpu.scores import Scores

from ._report import DEVICE, DTYPE, SMOKE

# Shares of the visible tiles that hold support.
DENSITIES = (1.0, 0.5, 0.25)


def local_inputs(
    length: int, heads: int, key_heads: int, dim: int, width: float | None, batch: int = 1
) -> list[Tensor]:
    """q, k and v whose scores fall off with distance like ``8 exp(-d^2 / 2 width^2)``; nearly equal for no width."""
    generator = torch.Generator(DEVICE).manual_seed(length)

    def noise(h: int) -> Tensor:
        return torch.randn(batch, h, length, dim, generator=generator, device=DEVICE)

    if width is None:
        return [
            (x * size).to(DTYPE) for x, size in ((noise(heads), 0.1), (noise(key_heads), 1), (noise(key_heads), 1))
        ]
    # The normal density's Fourier transform, at the quantiles of the normal distribution.
    quantiles = (torch.arange(dim // 2, device=DEVICE) + 0.5) / (dim // 2)
    angle = torch.arange(length, device=DEVICE)[:, None] * (torch.special.ndtri(quantiles) / width)
    feature = torch.cat([angle.cos(), angle.sin()], 1) * (8 * dim**0.5 / (dim // 2)) ** 0.5
    q, k = (feature + 0.05 * noise(h) for h in (heads, key_heads))
    return [x.to(DTYPE) for x in (q, k, noise(key_heads))]


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    return triton_attention(q, k, v, 1.5, 2.0, scaling=q.shape[-1] ** -0.5, causal=causal)


def written_down(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    z = q @ k.repeat_interleave(groups, 1).mT * q.shape[-1] ** -0.5
    if causal:
        z = z.masked_fill(torch.ones(z.shape[2:], dtype=torch.bool, device=z.device).triu(1), -torch.inf)
    return entmax15(z, impl="torch") @ v.repeat_interleave(groups, 1)


def softmax_attention(backend: SDPBackend) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH if SMOKE else backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    return attend


def adasplash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return importlib.import_module("adasplash").adasplash_v2(q.contiguous(), k.contiguous(), v.contiguous())


def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    blocks = create_block_mask(lambda b, h, i, j: j <= i, None, None, q.shape[2], k.shape[2], device=DEVICE)
    return flex_entmax_attention(q, k, v, 1.5, block_mask=blocks)


def one_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return triton_decode_values(entmax15(triton_decode_scores(q, k, q.shape[-1] ** -0.5), impl="triton"), v)


def live_share(q: Tensor, k: Tensor, v: Tensor) -> float:
    """The share of visible tiles that hold support."""
    attention = importlib.import_module("hf_sparse.kernels.gpu.attention")
    alpha = torch.full((q.shape[1],), 1.5, device=q.device)
    scores = Scores(alpha, 2, q.shape[-1] ** -0.5, causal=True)
    live = attention.attention_forward(q, k, v, scores)[2]
    tiles = attention.tiles_for(q.shape[-1], v.shape[-1], q.dtype)
    queries, keys = (torch.arange(n, device=q.device) for n in live.shape[2:])
    visible = keys[None, :] * tiles.keys < (queries[:, None] + 1) * tiles.queries
    return float(live.double().mean((0, 1)).sum() / visible.sum())


def width_for(density: float, length: int, dim: int) -> float | None:
    """The width of ``local_inputs`` that leaves a density, by halving: longer rows have narrower supports."""
    if density == 1:
        return None
    narrow, wide = 0.01 * length, 4.0 * length
    for _ in range(0 if SMOKE else 10):
        width = (narrow * wide) ** 0.5
        if live_share(*local_inputs(length, 1, 1, dim, width)) < density:
            narrow = width
        else:
            wide = width
    return wide
