"""Language modelling: sampling straight from a sparse distribution, against softmax cut to its likeliest tokens.

A small GPT-2-like model is trained from scratch with each head, with softmax and with entmax15 in attention. Text is
sampled from it, by greedy, top-k and nucleus sampling too where the head is softmax, and what is drawn from is
measured on held-out articles: eps-perplexity, sparsemax score, Jensen-Shannon divergence, and repetition.
Further runs make a trained softmax model sparse and train it on: wholly, only by a LoRA adapter, or not at all.

Measures and rivals are those of Martins, Marinho and Martins 2020, "Sparse Text Generation".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peft
import torch
from conversion_data import learn_tokenizer
from datasets import Dataset
from language_data import Text, blocks, read_text
from language_modelling_report import report
from study import Settings, main, setting, sibling
from text_measures import DENSE, SPARSE, distinct, fit, repetitions
from torch import Tensor
from torch.utils.data import DataLoader
from training import train
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast, set_seed

import hf_sparse
from hf_sparse.attention import observe

DENSE_RUN = "softmax"  # what conversions begin with
HEADS: dict[str, Any] = {
    "softmax": None,
    "sparsemax": "sparsemax",
    "entmax15": "entmax15",
    "entmax13": {"name": "entmax", "alpha": 1.3},
    "alpha_relu": "alpha_relu",
}


@dataclasses.dataclass(frozen=True)
class LanguageSettings(Settings):
    """One model, trained from scratch or made sparse after ``steps`` with softmax."""

    data: str = setting("scenes", paper="WikiText-2, WikiText-103, BookCorpus", where="Section 5.1")
    head: str = setting("softmax", paper="softmax, or entmax with alpha tuned", where="Section 5.1")
    attention: str = setting("softmax", paper="softmax")
    conversion: str = setting("", paper="GPT-2 medium, fine-tuned", where="Section 5.1")
    conversion_steps: int = setting(100)
    lora_rank: int = setting(8)
    vocabulary: int = setting(2000, paper="50,257", where="GPT-2")
    width: int = setting(96, paper="1,024", where="GPT-2 medium")
    layers: int = setting(2, paper="24", where="GPT-2 medium")
    context: int = setting(64)
    steps: int = setting(400)
    batch_size: int = setting(16)
    lr: float = setting(3e-3)
    lora_lr: float = setting(3e-3)
    uniform: float = setting(0.01)
    span: int = setting(32, paper="16, 32, 128, 512")
    test_rows: int = setting(150)
    prompts: int = setting(32)
    prompt: int = setting(16)
    report_to: str = setting("none")


def build(settings: LanguageSettings, tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """A fresh dense model; the same seed gives the same weights."""
    set_seed(settings.seed)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=settings.width,
        n_layer=settings.layers,
        n_head=4,
        n_positions=settings.context,
        initializer_range=0.06,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return GPT2LMHeadModel(config)


def made_sparse(model: PreTrainedModel, settings: LanguageSettings) -> PreTrainedModel:
    """``model`` with the run's maps, or as it is where all are softmax."""
    maps = {"attn": None if settings.attention == "softmax" else settings.attention, "head": HEADS[settings.head]}
    return model if not any(maps.values()) else hf_sparse.sparsify(model, **maps)


def collate(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Rows of one length, which are their own labels."""
    ids = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": ids, "labels": ids}


class Corpus:
    """The rows of a text, and how models are trained on them."""

    def __init__(self, settings: LanguageSettings) -> None:
        text: Text = read_text(settings.data)
        self.what = text.what
        self.settings = settings
        self.tokenizer = learn_tokenizer(text.train, settings.vocabulary)
        self.train_rows = blocks(self.tokenizer, text.train, settings.context)
        self.test_rows = torch.tensor(blocks(self.tokenizer, text.test, settings.context, settings.test_rows))

    def train(self, model: Any, folder: Path, steps: int, lr: float, phase: int) -> None:
        """Train ``model`` in place, the learning rate up and down once."""
        settings = self.settings
        train(
            model,
            self.tokenizer,
            Dataset.from_dict({"input_ids": self.train_rows}),
            folder,
            collator=collate,
            steps=steps,
            lr=lr,
            batch_size=settings.batch_size,
            seed=settings.seed + phase,
            report_to=settings.report_to,
        )

    def model(self, folder: Path) -> Any:
        """The model of the run, trained."""
        settings = self.settings
        model: Any
        if not settings.conversion:
            model = made_sparse(build(settings, self.tokenizer), settings)
            self.train(model, folder / "training", settings.steps, settings.lr, 0)
            return model
        model = made_sparse(GPT2LMHeadModel.from_pretrained(sibling(folder, DENSE_RUN, settings) / "model"), settings)
        if settings.conversion == "lora":
            wanted = ["c_attn", "c_proj", "c_fc"]
            model = peft.get_peft_model(
                model,
                peft.LoraConfig(
                    r=settings.lora_rank, lora_alpha=2 * settings.lora_rank, target_modules=wanted, fan_in_fan_out=True
                ),
            )
        if settings.conversion != "none":
            lr = settings.lora_lr if settings.conversion == "lora" else settings.lr / 2
            self.train(model, folder / "training", settings.conversion_steps, lr, 1)
        return model


def distributions(model: Any, logits: Tensor) -> Tensor:
    """The model's own next-token distributions."""
    return hf_sparse.probabilities(model, logits) if hf_sparse.is_sparse(model) else logits.softmax(-1)


@torch.no_grad()
def measure(model: Any, corpus: Corpus) -> dict[str, Any]:
    """Figures on the held-out rows, for every way to decode and for what was written.

    Returns:
        ``decodings``: by name, what ``fit`` sums up, as means, with ``eps_perplexity`` and ``perplexity`` (None where
        a token was missed), ``rep`` and ``wrep``. ``keys``: attention's mean number of keys of nonzero weight, None
        for the model's own softmax. ``human``: ``rep`` of what was written. ``tokens``: how many there are.
    """
    settings = corpus.settings
    decodings = SPARSE if hf_sparse.is_sparse(model) and HEADS[settings.head] is not None else DENSE
    sums: dict[str, dict[str, float]] = {name: {} for name in decodings}
    human, count = 0, 0
    random = torch.Generator().manual_seed(settings.seed)
    model.eval()
    with observe(model) as counts:
        for rows in DataLoader(corpus.test_rows, 10):
            p = distributions(model, model(input_ids=rows.to(model.device)).logits[:, :-1]).cpu()
            text = rows[:, 1:]
            count += text.numel()
            human += repetitions(text, text, settings.span)[0]
            for name, decoding in decodings.items():
                drawn_from = decoding.of(p).flatten(0, 1)
                figures = fit(drawn_from, text.flatten(), settings.uniform)
                drawn = torch.multinomial(drawn_from, 1, generator=random).view_as(text)
                figures["rep"], figures["wrep"] = repetitions(drawn, text, settings.span)
                for key, value in figures.items():
                    sums[name][key] = sums[name].get(key, 0.0) + value
    means = {name: {key: value / count for key, value in total.items()} for name, total in sums.items()}
    for figures in means.values():
        loss = figures.pop("loss")
        figures["eps_perplexity"] = math.exp(figures.pop("eps_loss"))
        figures["perplexity"] = math.exp(loss) if math.isfinite(loss) else None
    nonzero, queries = (sum(getattr(each, name) for each in counts.values()) for name in ("nonzero", "rows"))
    keys = nonzero / queries if queries else None
    return {"decodings": means, "keys": keys, "human": {"rep": human / count}, "tokens": count}


@torch.no_grad()
def continuations(model: Any, corpus: Corpus) -> dict[str, Any]:
    """Beginnings of held-out rows continued in every way of decoding, and as they were written.

    Returns:
        By decoding, and under ``human``: ``distinct``, shares of different n-grams by n; and ``examples``, three
        continuations. ``beginnings`` has what these go on from.
    """
    settings, tokenizer = corpus.settings, corpus.tokenizer
    rows = corpus.test_rows[:: max(len(corpus.test_rows) // settings.prompts, 1)][: settings.prompts]
    beginnings, length = rows[:, : settings.prompt], settings.context - settings.prompt
    sparse_head = hf_sparse.is_sparse(model) and HEADS[settings.head] is not None
    texts = {"human": rows[:, settings.prompt :]}
    for name, decoding in (SPARSE if sparse_head else DENSE).items():
        set_seed(settings.seed)
        written = model.generate(
            input_ids=beginnings.to(model.device),
            attention_mask=torch.ones_like(beginnings).to(model.device),
            max_new_tokens=length,
            min_new_tokens=length,
            **decoding.arguments(),
        )
        texts[name] = written[:, settings.prompt :].cpu()
    told = {
        name: {
            "distinct": {str(n): distinct(written.tolist(), n) for n in (1, 2, 3)},
            "examples": tokenizer.batch_decode(written[:3]),
        }
        for name, written in texts.items()
    }
    return told | {"beginnings": tokenizer.batch_decode(beginnings[:3])}


def perform(settings: LanguageSettings, folder: Path) -> dict[str, Any]:
    """Train or convert one model, measure it and let it write."""
    corpus = Corpus(settings)
    model = corpus.model(folder)
    if hf_sparse.is_sparse(model):
        hf_sparse.save_pretrained(model, folder / "model")  # an adapter, too, keeps the maps of its base
    else:
        model.save_pretrained(folder / "model")
    corpus.tokenizer.save_pretrained(folder / "model")
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return {
        "data": corpus.what,
        "train_rows": len(corpus.train_rows),
        "vocabulary": len(corpus.tokenizer),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "maps": hf_sparse.sparse_config(model).to_dict() if hf_sparse.is_sparse(model) else None,
        "trained": 0 if settings.conversion == "none" else trained,
        **measure(model, corpus),
        "written": continuations(model, corpus),
    }


RUNS = {
    f"{head}{'' if attention == 'softmax' else '-attention'}": LanguageSettings(head=head, attention=attention)
    for attention in ("softmax", "entmax15")
    for head in HEADS
} | {
    "softmax-on": LanguageSettings(conversion="full"),
    **{f"entmax15-{way}": LanguageSettings(head="entmax15", attention="entmax15", conversion=way)
       for way in ("none", "lora", "full")},
}  # fmt: skip
QUICK = {
    "steps": 4, "conversion_steps": 3, "width": 16, "layers": 1, "vocabulary": 300, "context": 24, "prompt": 8,
    "test_rows": 6, "prompts": 3,
}  # fmt: skip


def run(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the recipe from the command line."""
    assert __doc__
    return main(
        "language_modelling", __doc__, RUNS, perform, report, QUICK, arguments,
        needs=lambda settings: [DENSE_RUN] if settings.conversion else [],
    )  # fmt: skip


if __name__ == "__main__":
    run()
