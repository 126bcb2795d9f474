"""The kernels beside those of softmax and of other packages."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from ._attends import (
    DENSITIES,
    adasplash,
    flash,
    flex,
    live_share,
    local_inputs,
    one_query,
    softmax_attention,
    width_for,
)
from ._losses import FUSED, LOSSES, liger, trained_like
from ._report import SMOKE, Report, batch_of, replayed, with_gradients


def rows(report: Report) -> None:
    for vocabulary in (300,) if SMOKE else (32_768, 131_072, 262_144):
        hidden, weight, y = trained_like(*((8, vocabulary, 16) if SMOKE else (4096, vocabulary, 1024)))
        z = hidden @ weight.T
        candidates = {
            "cross_entropy": lambda z, y=y: F.cross_entropy(z, y),
            "cross_entropy of float32, as Transformers'": lambda z, y=y: F.cross_entropy(z.float(), y),
        } | {name: lambda z, loss=loss, y=y: loss(z, y, impl="triton") for name, loss in LOSSES.items()}
        case, runs = f"{len(z)} x {vocabulary}", {name: with_gradients(loss, z) for name, loss in candidates.items()}
        report.compare("rows, forward + backward", case, runs)
        report.compare("rows, forward + backward", f"{case}, as a CUDA graph", runs, replayed)


def fused(report: Report) -> None:
    size, vocabulary = (16, 300) if SMOKE else (4096, 131_072)
    hidden, weight, y = trained_like(size, vocabulary, size)
    candidates = {
        "liger": lambda x, w: liger(x, w, y),
        "linear_cross_entropy": lambda x, w: F.linear_cross_entropy(x, w, y),
        "cross_entropy": lambda x, w: F.cross_entropy((x @ w.T).float(), y),
    } | {name: partial(loss, y=y, impl="triton") for name, loss in FUSED.items()}
    runs = {name: with_gradients(loss, hidden, weight) for name, loss in candidates.items()}
    report.compare("fused linear loss, forward + backward", f"N = D = {size}, V = {vocabulary}", runs)


def decode(report: Report) -> None:
    heads, key_heads, dim = (4, 2, 16) if SMOKE else (32, 8, 128)
    for length in (130,) if SMOKE else (4096, 16_384, 65_536):
        q, k, v = local_inputs(length, heads, key_heads, dim, length / 20, batch=1 if SMOKE else 8)
        q = q[:, :, -1:]

        attends = {"SDPA": partial(F.scaled_dot_product_attention, enable_gqa=True), "entmax15": one_query}
        runs = {name: partial(attend, q, k, v) for name, attend in attends.items()}
        report.compare("decode, one query", f"T = {length}", runs)
        report.compare("decode, one query", f"T = {length}, as a CUDA graph", runs, replayed)


def attention(report: Report) -> None:
    heads, dim = (2, 16) if SMOKE else (16, 128)
    for length in (48,) if SMOKE else (2048, 8192, 32_768, 4096, 16_384):
        for density in DENSITIES:
            q, k, v = local_inputs(length, heads, heads, dim, width_for(density, length, dim), batch_of(length))
            case, about = f"T = {length}, density {density}", described_by(length, density)
            report.add("attention", case, "live tiles", lambda q=q, k=k, v=v: {"share": live_share(q, k, v)})
            attends = {
                "SDPA flash": softmax_attention(SDPBackend.FLASH_ATTENTION),
                "SDPA cuDNN": softmax_attention(SDPBackend.CUDNN_ATTENTION),
                "flash entmax15": flash,
            }
            runs = {name: with_gradients(attend, q, k, v) for name, attend in attends.items()}
            report.compare("attention, forward + backward", case, runs, **about)
            runs = {name: partial(attend, q, k, v) for name, attend in attends.items()}
            report.compare("attention, forward", case, runs, **about)


def others(report: Report) -> None:
    """adasplash tunes itself for minutes at every new length, FlexAttention is compiled: they come last."""
    heads, dim = (2, 16) if SMOKE else (16, 128)
    for length in (48,) if SMOKE else (2048, 8192):
        for density in DENSITIES:
            inputs = local_inputs(length, heads, heads, dim, width_for(density, length, dim), batch_of(length))
            attends = {"adasplash 2": adasplash, "flash entmax15": flash}
            if not SMOKE:  # on the CPU torch's FlexAttention gives no gradients
                attends["FlexAttention entmax15"] = flex
            case, about = f"T = {length}, density {density}, beside adasplash", described_by(length, density)
            runs = {name: with_gradients(attend, *inputs) for name, attend in attends.items()}
            report.compare("attention, forward + backward", case, runs, **about)
            report.compare("attention, forward + backward", f"{case}, as a CUDA graph", runs, replayed, **about)


def described_by(length: int, density: float) -> dict[str, float]:
    return {"length": length, "tokens": length * batch_of(length), "density": density}
