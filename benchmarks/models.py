"""Whole models: what a training step, an evaluation and generation take once a model is sparse.

Weights are random, so that supports are as large as where training begins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from hf_sparse import sparsify

from ._case import Case

BASELINE = "softmax"
# Settings of sparsify, by what they are called in the table.
SETTINGS: dict[str, dict[str, Any]] = {
    "entmax15 in attention": {"attn": "entmax15"},
    "entmax 1.3 at the head": {"head": {"name": "entmax", "alpha": 1.3, "temperature": "auto"}},
    "entmax15 in both": {"attn": "entmax15", "head": "entmax15"},
    "entmax 1.33 in attention, alpha-ReLU at the head": {
        "attn": {"name": "entmax", "alpha": 1.33},
        "head": "alpha_relu",
    },
}
VOCAB, WIDTH, LAYERS, HEADS, NEW_TOKENS = 32_000, 256, 4, 8, 16


def _llama(vocab: int, width: int, layers: int) -> PreTrainedModel:
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab, num_attention_heads=HEADS, **sizes))


def _bert(vocab: int, width: int, layers: int) -> PreTrainedModel:
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    return BertForMaskedLM(BertConfig(vocab_size=vocab, num_attention_heads=HEADS, **sizes))


def _t5(vocab: int, width: int, layers: int) -> PreTrainedModel:
    sizes = {"d_model": width, "d_ff": 2 * width, "num_layers": layers, "num_heads": HEADS, "d_kv": width // HEADS}
    return T5ForConditionalGeneration(T5Config(vocab_size=vocab, decoder_start_token_id=0, **sizes))


def _train(model: Any, ids: Tensor) -> None:
    model.train()
    model.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()


@torch.no_grad()
def _evaluate(model: Any, ids: Tensor) -> None:
    model.eval()
    model(input_ids=ids, labels=ids)


@torch.no_grad()
def _forward(model: Any, ids: Tensor) -> None:
    """Logits of a dense model, log-probabilities of a sparse one."""
    model.eval()
    model(input_ids=ids)


def _generate(model: Any, ids: Tensor, beams: int) -> None:
    model.eval()
    lengths = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}
    model.generate(ids, num_beams=beams, do_sample=False, pad_token_id=0, eos_token_id=1, **lengths)


BUILD = {"Llama": _llama, "BERT": _bert, "T5": _t5}
JOBS: dict[str, Callable[[Any, Tensor], None]] = {
    "training step": _train,
    "loss without gradients": _evaluate,
    "call without labels": _forward,
    "greedy decoding": partial(_generate, beams=1),
    "4 beams": partial(_generate, beams=4),
}


def case(name: str, job: str, batch: int, length: int, vocab: int = VOCAB, width: int = WIDTH) -> Case:
    """One job of one model, softmax and sparse, on random tokens."""
    ids = torch.randint(5, vocab, (batch, length), generator=torch.Generator().manual_seed(0))

    def model(settings: dict[str, Any] | None) -> PreTrainedModel:
        torch.manual_seed(0)
        dense = BUILD[name](vocab, width, LAYERS)
        return dense if settings is None else sparsify(dense, **settings)

    given = {BASELINE: None, **SETTINGS}
    return Case(
        title=f"{name}-like, {LAYERS} layers of {width}, V = {vocab}: {job}, {batch} x {length}",
        baseline=BASELINE,
        candidates={each: partial(JOBS[job], model(settings), ids) for each, settings in given.items()},
        rounds=5,
    )


SHAPES = ((8, 32), (4, 128), (1, 512))
# BERT does not generate, and T5 takes no call without labels or the tokens of a decoder.
JOBS_OF = {
    "Llama": tuple(JOBS),
    "BERT": ("training step", "loss without gradients", "call without labels"),
    "T5": ("training step", "loss without gradients", "greedy decoding", "4 beams"),
}
CASES = [partial(case, name, job, *shape) for name, jobs in JOBS_OF.items() for job in jobs for shape in SHAPES]
QUICK = [partial(case, name, job, 1, 8, 50, 16) for name, job in (("BERT", "training step"), ("T5", "4 beams"))]
