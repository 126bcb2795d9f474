"""Attention on the CPU against torch's scaled_dot_product_attention: calls by length and density, and whole models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM, WhisperConfig, WhisperModel

from hf_sparse import sparsify
from hf_sparse.attention import set_impl
from hf_sparse.attention.interface import sparse_attention
from hf_sparse.attention.site import SITE, AttentionSite
from hf_sparse.config import MapConfig
from hf_sparse.functional import entmax

from ._case import Case
from ._impls import kernel

BASELINE = "scaled_dot_product_attention"
HEADS, HEAD_DIM = 8, 64
_QUERIES_AT_A_TIME = 256
# Of queries and keys drawn from a normal distribution: every key in the support, several, few.
SIZES = {"dense": 0.02, "medium": 0.3, "sparse": 1.0}


def _module(impl: str, alpha: float) -> nn.Module:
    """Attention of a model, as Transformers calls it."""
    module = nn.Module()
    map_config = MapConfig.parse({"name": "entmax", "alpha": alpha}, "attn")
    module.__dict__[SITE] = AttentionSite("attn", "decoder", map_config, impl=impl)
    return module


def _step(attend: Callable[..., Tensor], inputs: list[Tensor], upstream: Tensor) -> Callable[[], None]:
    def step() -> None:
        leaves = [x.detach().requires_grad_() for x in inputs]
        attend(*leaves).backward(upstream)

    return step


def call(length: int, kind: str, causal: bool = False, alpha: float = 1.5) -> Case:
    """Forward and backward of 8 heads of 64, laid out as a model's projections leave them."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(4, 1, length, HEADS, HEAD_DIM, generator=generator).transpose(2, 3)
    q, k, v, upstream = drawn[0] * SIZES[kind], *drawn[1:]
    scores = HEAD_DIM**-0.5 * q[:, :1] @ k[:, :1].mT
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    share = float((entmax(scores, alpha) > 0).sum() / (scores > -torch.inf).sum())
    parts: dict[str, dict[str, Callable[[], object]]] = {}
    candidates = {BASELINE: _step(partial(scaled_dot_product_attention, is_causal=causal), [q, k, v], upstream)}
    for impl in ("torch", "cpp") if kernel() else ("torch",):
        attend = partial(_output, _module(impl, alpha), causal)
        candidates[f"entmax {alpha:g}, {impl}"] = _step(attend, [q, k, v], upstream.transpose(1, 2))
        if impl == "cpp":
            own: dict[str, Callable[[], object]] = {
                "its seven products, by torch": partial(_products, *(x[0] for x in (q, k, v, upstream)))
            }
            if length <= 128:
                few = [x[:, :, :8].contiguous() for x in (q, k, v)]
                own["a call of 8 keys"] = _step(attend, few, upstream[:, :, :8].transpose(1, 2))
            parts[f"entmax {alpha:g}, cpp"] = own
    sparse_and_long = length >= 2048 and share <= 0.1
    targets = {f"entmax {alpha:g}, cpp": 1.0 if sparse_and_long else 1.3} if kernel() else {}
    return Case(
        title=f"attention, T = {length}{', causal' if causal else ''}, {share:.0%} of the weights above zero",
        baseline=BASELINE,
        candidates=candidates,
        targets=targets,
        parts=parts,
        rounds=5,
        threads=1,
    )


def inference(length: int, kind: str, alpha: float = 1.5) -> Case:
    """The forward pass alone in bfloat16, which CPUs with AMX multiply in tiles."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, length, HEADS, HEAD_DIM, generator=generator).transpose(2, 3)
    q, k, v = ((SIZES[kind] * q).bfloat16(), k.bfloat16(), v.bfloat16())
    share = float((entmax(HEAD_DIM**-0.5 * q[:, :1].float() @ k[:, :1].float().mT, alpha) > 0).float().mean())

    @torch.no_grad()
    def run(attend: Callable[..., Tensor]) -> None:
        attend(q, k, v)

    candidates, by_kernel = {BASELINE: partial(run, scaled_dot_product_attention)}, f"entmax {alpha:g}, cpp"
    for impl in ("torch", "cpp") if kernel() else ("torch",):
        candidates[f"entmax {alpha:g}, {impl}"] = partial(run, partial(_output, _module(impl, alpha), False))
    return Case(
        title=f"attention, T = {length}, bfloat16, forward, {share:.0%} of the weights above zero",
        baseline=BASELINE,
        candidates=candidates,
        targets={by_kernel: 1.3} if kernel() else {},
        parts={by_kernel: {"its two products, by torch": partial(run, _forward_products)}} if kernel() else {},
        rounds=5,
        threads=1,
    )


def _products(q: Tensor, k: Tensor, v: Tensor, upstream: Tensor) -> list[tuple[Tensor, ...]]:
    """What a blocked kernel multiplies, with all blocks, of (heads, T, head_dim): two products forward, five backward.

    Queries go by a few hundred, so that scores stay in the cache, as they do in the kernel.
    """
    results = []
    for start in range(0, q.shape[1], _QUERIES_AT_A_TIME):
        rows, outer = (x[:, start : start + _QUERIES_AT_A_TIME] for x in (q, upstream))
        scores, again, slopes = rows @ k.mT, rows @ k.mT, outer @ v.mT
        results.append((scores @ v, slopes @ k, slopes.mT @ rows, again.mT @ outer))
    return results


def _forward_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What the forward pass multiplies, block by block as ``_products``."""
    return torch.cat([(rows @ k.mT) @ v for rows in q.split(_QUERIES_AT_A_TIME, dim=2)], dim=2)


def _output(module: nn.Module, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sparse_attention(module, q, k, v, is_causal=causal)[0]


def llama(length: int, width: int = 512, num_layers: int = 4) -> Case:
    """A training step of a small language model, whose head stays dense."""
    ids = torch.randint(3, 1000, (1, length), generator=torch.Generator().manual_seed(0))
    shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": num_layers}

    def model(attn: str | None) -> Any:
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=1000, num_attention_heads=8, **shape, attn_implementation="sdpa")
        dense = LlamaForCausalLM(config)
        return dense if attn is None else sparsify(dense, attn=attn)

    def train(model: Any) -> None:
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()

    return _models(f"Llama-like, {num_layers} layers of {width}, T = {length}, forward + backward", model, train)


def whisper(length: int = 1500, width: int = 384, num_layers: int = 4) -> Case:
    """The encoder of whisper-tiny, over 30 seconds of noise."""
    features = torch.randn(1, 80, 2 * length, generator=torch.Generator().manual_seed(0))

    def model(attn: str | None) -> Any:
        torch.manual_seed(0)
        config = WhisperConfig(
            vocab_size=100, d_model=width, encoder_layers=num_layers, encoder_attention_heads=6, decoder_layers=1,
            encoder_ffn_dim=4 * width, max_source_positions=length, attn_implementation="sdpa",
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )  # fmt: skip
        dense = WhisperModel(config).eval()
        return (dense if attn is None else sparsify(dense, attn={"encoder": attn})).get_encoder()

    def encode(encoder: Any) -> None:
        with torch.no_grad():
            encoder(features)

    return _models(f"Whisper-like encoder, {num_layers} layers of {width}, T = {length}, forward", model, encode)


def _models(title: str, model: Callable[[str | None], Any], run: Callable[[Any], None]) -> Case:
    candidates = {"SDPA": partial(run, model(None))}
    for impl in ("torch", "cpp") if kernel() else ("torch",):
        sparse = model("entmax15")
        set_impl(sparse, impl)
        candidates[f"entmax15, {impl}"] = partial(run, sparse)
    return Case(title=title, baseline="SDPA", candidates=candidates, rounds=5, threads=1)


CASES = [
    *(partial(call, length, kind) for length in (128, 512, 1024, 2048) for kind in SIZES),
    *(partial(call, length, "sparse", causal=True) for length in (128, 512, 2048)),
    *(partial(call, length, "medium", alpha=a) for length in (128, 512, 2048) for a in (1.05, 1.33, 4 / 3, 1.75, 2.0)),
    *(partial(inference, length, kind) for length in (512, 2048) for kind in SIZES),
    *(partial(inference, length, "medium", alpha=1.33) for length in (512, 2048)),
    *(partial(llama, length) for length in (512, 2048)),
    whisper,
]
QUICK = [
    partial(call, 64, "sparse", causal=True),
    partial(inference, 64, "medium"),
    partial(llama, 32, 64, 1),
    partial(whisper, 32, 24, 1),
]
