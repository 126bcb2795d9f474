"""Decoding: the sparse head against softmax token by token, and exact search against simpler ways to search."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from hf_sparse import exact_search, probabilities, sparsify

from ._case import Case

END = 2
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": END}
HEADS: dict[str, Any] = {
    "entmax15": "entmax15",
    "sparsemax": "sparsemax",
    "alpha-ReLU": {"name": "alpha_relu", "tau": "auto"},
}


def greedy(num_classes: int = 50_000, width: int = 512, num_layers: int = 4, num_tokens: int = 16) -> Case:
    """The same random model with each head, always ``num_tokens`` tokens after a prompt of 16."""
    shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": num_layers}

    def decode(head: Any) -> Callable[[], Tensor]:
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=num_classes, num_attention_heads=8, **shape, **SPECIAL)
        model = LlamaForCausalLM(config).eval()
        ids = torch.arange(3, 19)[None]
        options = {"min_new_tokens": num_tokens, "max_new_tokens": num_tokens, "do_sample": False}
        if head is not None:
            sparsify(model, head=head)
        return partial(model.generate, ids, attention_mask=torch.ones_like(ids), **options)

    return Case(
        title=f"greedy decoding, {num_tokens} tokens, {num_layers} layers of {width}, V = {num_classes}, one thread",
        baseline="softmax",
        candidates={"softmax": decode(None), **{name: decode(head) for name, head in HEADS.items()}},
        targets=dict.fromkeys(HEADS, 1.15),
        threads=1,
    )


def search(head: str | None = "entmax15", prompt: int = 64, max_new_tokens: int = 4) -> Case:
    """The likeliest string of a small random model, found and proved in four ways."""
    shape = {"vocab_size": 12, "n_embd": 64, "n_layer": 2, "n_head": 4, "tie_word_embeddings": False}
    torch.manual_seed(2)
    model: Any = GPT2LMHeadModel(GPT2Config(**shape, initializer_range=0.15, **SPECIAL)).eval()
    model.lm_head.weight.data[END] = 0  # unlikely, so that there is something to search
    if head is not None:
        sparsify(model, head=head)
    ids = torch.randint(3, 12, (1, prompt), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    exact = partial(exact_search, model, inputs, max_new_tokens=max_new_tokens)
    candidates: dict[str, Callable[[], object]] = {
        "depth first, no cache": partial(depth_first, model, ids, max_new_tokens, head is not None),
        "exact_search": exact,
        "exact_search, no cache": partial(exact, use_cache=False),
        "exact_search, one prefix at a time": partial(exact, width=1),
    }
    if head is not None:
        candidates["all strings, no cache"] = partial(depth_first, model, ids, max_new_tokens, True, prune=False)
    return Case(
        title=f"likeliest string of {head or 'softmax'}, prompt of {prompt}, V = 12, one thread",
        baseline="depth first, no cache",
        candidates=candidates,
        targets={"exact_search": 1.0},
        rounds=5,
        threads=1,
    )


@torch.no_grad()
def depth_first(model: Any, prompt: Tensor, max_new_tokens: int, sparse: bool, prune: bool = True) -> float:
    """Probability of the likeliest string, likeliest continuations first, one pass over the whole prefix for each."""
    best, stack = 0.0, [((), 1.0)]
    while stack:
        string, mass = stack.pop()
        if len(string) == max_new_tokens or (prune and mass <= best):
            continue
        logits = model(torch.cat([prompt, torch.tensor([string], dtype=torch.long)], dim=1)).logits[0, -1]
        p = probabilities(model, logits) if sparse else logits.softmax(-1)
        for token in p.argsort().tolist():
            if token == END:
                best = max(best, mass * float(p[token]))
            elif p[token] > 0:
                stack.append(((*string, token), mass * float(p[token])))
    return best


CASES = [greedy, search, partial(search, head=None)]
QUICK = [partial(greedy, 200, 16, 1, 3), partial(search, prompt=4, max_new_tokens=2)]
