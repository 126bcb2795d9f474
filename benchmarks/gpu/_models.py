"""Whole models: a step of training, and strings that they generate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hf_sparse import sparsify

from ._report import DEVICE, DTYPE, SMOKE, Report, batch_of, once

BOTH: dict[str, Any] = {"attn": "entmax15", "head": "entmax15"}
TINY = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
LARGE = {
    "vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4,
}  # fmt: skip


def models(report: Report) -> None:
    """A training step of a model whose attention is as random weights leave it: nearly every key has weight."""
    sizes = (16, 1, 300) if SMOKE else (128, 4, 32_000)
    for length in (48,) if SMOKE else (2048, 8192):
        runs = {
            name: training_step(length, *sizes, maps)
            for name, maps in {
                "softmax, cross_entropy": {},
                "entmax15 attention": {"attn": "entmax15"},
                "entmax15 head": {"head": "entmax15"},
                "entmax15 attention and head, fused": {"attn": "entmax15", "head": "entmax15", "fused_loss": True},
            }.items()
        }
        report.compare("training step", f"T = {length}", runs, length=length, tokens=length * batch_of(length))


def training_step(
    length: int, head_dim: int, num_layers: int, vocabulary: int, maps: dict[str, Any]
) -> Callable[[], None]:
    """Forward and backward of a Llama with 16 heads, 4 of them with keys of their own."""
    model = language_model(
        DTYPE, maps, vocab_size=vocabulary, hidden_size=16 * head_dim, intermediate_size=44 * head_dim,
        num_hidden_layers=num_layers, num_attention_heads=16, num_key_value_heads=4, use_cache=False,
    ).train()  # fmt: skip
    ids = torch.randint(vocabulary, (batch_of(length), length), device=DEVICE)

    def run() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        model.zero_grad()

    return run


def generation(report: Report) -> None:
    """Strings of a model, with the graph that Transformers compiles over a static cache, and many requests at once.

    A model's weights are random here, so that attention is dense, and every step costs what it can cost at most.
    """
    model, length = language_model(torch.float32, BOTH, **TINY), 4 if SMOKE else 24
    prompts = torch.randint(1, 300, (3, 10), generator=torch.Generator().manual_seed(0)).tolist()
    expected = strings(model, prompts, length)
    for name, decode_all in {
        "over a static cache, compiled": partial(strings, cache_implementation="static"),
        "by continuous batching": batch_strings,
    }.items():
        report.add("check", "generate", name, lambda run=decode_all: same(run(model, prompts, length), expected))
    sizes, batch, length, before = (TINY, 2, 4, 8) if SMOKE else (LARGE, 8, 64, 512)
    prompts = torch.randint(1, 300, (batch, before), generator=torch.Generator().manual_seed(0)).tolist()
    models = {
        "softmax": language_model(DTYPE, {}, **sizes),
        "entmax15 attention and head": language_model(DTYPE, BOTH, **sizes),
    }
    for how, decode_all in {
        "a kernel after the other": strings,
        "compiled over a static cache": partial(strings, cache_implementation="static"),
        "continuous batching": batch_strings,
    }.items():
        runs = {name: partial(decode_all, model, prompts, length) for name, model in models.items()}
        report.compare("generate", f"{batch} strings of {length} tokens after {before}, {how}", runs, once)


def language_model(dtype: torch.dtype, maps: dict[str, Any], **sizes: int) -> PreTrainedModel:
    """A Llama with random weights, made sparse by ``maps``, none of whose strings ends before it is long enough."""
    config = LlamaConfig(**sizes, max_position_embeddings=8192, eos_token_id=None, pad_token_id=0)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config).to(dtype).eval()
    return sparsify(model, **maps) if maps else model


def strings(model: PreTrainedModel, prompts: list[list[int]], length: int, **options: Any) -> list[list[int]]:
    """Greedy continuations of prompts of one length, each of ``length`` tokens."""
    ids = torch.tensor(prompts, device=DEVICE)
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=length, **options)
    return out[:, ids.shape[1] :].tolist()


def batch_strings(model: PreTrainedModel, prompts: list[list[int]], length: int) -> list[list[int]]:
    """The same of prompts of any length, which continuous batching decodes."""
    settings = GenerationConfig(do_sample=False, max_new_tokens=length, eos_token_id=-1, pad_token_id=0)
    pages = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=64) if SMOKE else None  # else all memory's
    found = model.generate_batch(
        prompts, generation_config=settings, continuous_batching_config=pages, progress_bar=False
    )
    return [output.generated_tokens for output in found.values()]


def same(actual: list[list[int]], expected: list[list[int]]) -> dict[str, Any]:
    """How large a share of the tokens differs."""
    pairs = [pair for ours, theirs in zip(actual, expected, strict=True) for pair in zip(ours, theirs, strict=True)]
    differing = sum(a != b for a, b in pairs) / len(pairs)
    return {"errors": [differing], "verdict": "WRONG" if differing else "right"}
