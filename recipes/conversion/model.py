"""The two small models of the conversion recipe, and their figures on held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    DataCollatorForSeq2Seq,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    set_seed,
)

from hf_sparse.metrics import eps_perplexity, sparsemax_score, support_size

from ..language_modelling.data import blocks, learn_tokenizer
from ..lib.batches import collate
from ..lib.models import probabilities, small_gpt2
from ..lib.records import Figures
from ..translation.data import Pair
from .data import line_pairs, text_lines

CONTEXT = 64  # tokens in a row of text, and the most of a sentence
UNIFORM = (0.01, 0.001, 0.1)  # shares of the uniform distribution in the losses; the first is the one compared


@dataclass
class Task:
    """A model and its data.

    Attributes:
        model_class: of the model, for loading a saved one.
        tokenizer: learned from the training rows.
        train: training rows.
        dev: held-out rows.
        build: makes a fresh dense model; the same seed gives the same weights.
        collator: makes a batch of rows.
        what: name of the data.
    """

    model_class: type[PreTrainedModel]
    tokenizer: PreTrainedTokenizerFast
    train: Dataset
    dev: Dataset
    build: Callable[[int], PreTrainedModel]
    collator: Any
    what: str

    def loader(self, rows: Dataset, batch_size: int) -> DataLoader:
        """Batches of ``rows`` in their order."""
        return DataLoader(rows, batch_size, collate_fn=self.collator)


def text_task(settings: Any) -> Task:
    """A GPT-2-like model and its text."""
    text = text_lines(settings.data)
    tokenizer = learn_tokenizer(text.train, settings.vocabulary)

    def rows(texts: list[str], limit: int) -> Dataset:
        return Dataset.from_dict({"input_ids": blocks(tokenizer, texts, CONTEXT, limit or None)})

    def build(seed: int) -> PreTrainedModel:
        return small_gpt2(tokenizer, settings.width, settings.layers, CONTEXT, seed)

    train, dev = rows(text.train, settings.train_rows), rows(text.test, settings.dev_rows)
    return Task(GPT2LMHeadModel, tokenizer, train, dev, build, collate, text.what)


def pair_task(settings: Any) -> Task:
    """A BART-like model and its pairs of lines."""
    train, dev, what = line_pairs(settings.data, settings.source, settings.target)
    tokenizer = learn_tokenizer([line for pair in train for line in pair], settings.vocabulary)

    def rows(pairs: list[Pair], limit: int) -> Dataset:
        sides = zip(*pairs[: limit or None])
        ids = [tokenizer(list(side), truncation=True, max_length=CONTEXT).input_ids for side in sides]
        return Dataset.from_dict({"input_ids": ids[0], "labels": ids[1]})

    def build(seed: int) -> PreTrainedModel:
        set_seed(seed)
        sizes: dict[str, int] = {}
        for side in ("encoder", "decoder"):
            sizes[f"{side}_layers"] = max(settings.layers - 1, 1)
            sizes[f"{side}_attention_heads"] = 4
            sizes[f"{side}_ffn_dim"] = 4 * settings.width
        config = BartConfig(
            vocab_size=len(tokenizer),
            d_model=settings.width,
            max_position_embeddings=CONTEXT + 1,
            init_std=0.06,
            decoder_start_token_id=tokenizer.bos_token_id,
            forced_eos_token_id=None,
            **sizes,
            **_token_ids(tokenizer),
        )
        return BartForConditionalGeneration(config)

    collator = DataCollatorForSeq2Seq(tokenizer)
    train_rows, dev_rows = rows(train, settings.train_rows), rows(dev, settings.dev_rows)
    return Task(BartForConditionalGeneration, tokenizer, train_rows, dev_rows, build, collator, what)


TASKS: dict[str, Callable[[Any], Task]] = {"gpt2": text_task, "bart": pair_task}


def _token_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    return {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}


@torch.no_grad()
def evaluate(model: PreTrainedModel, task: Task, batch_size: int) -> Figures:
    """Figures on the held-out rows that mean the same for every map.

    Returns:
        ``loss``, the mean of ``-log((1 - u) p_x + u / V)`` in nats per token, with ``u = UNIFORM[0]``: log of the
        eps-perplexity at that share of the uniform distribution; ``loss_at``, the same for every ``u``; ``missed``,
        the share of tokens of probability 0; ``accuracy`` of the likeliest token; ``sparsemax_score``; ``support``,
        the mean number of tokens of nonzero probability; ``tokens``, their number.
    """
    training = model.training
    model.eval()
    sums: dict[str, float] = {}
    count = 0
    for batch in task.loader(task.dev, batch_size):
        batch = {name: values.to(model.device) for name, values in batch.items()}
        logits, labels = model(**batch).logits, batch["labels"]
        if not model.config.is_encoder_decoder:
            logits, labels = logits[:, :-1], labels[:, 1:]
        logits, y = logits[labels != -100], labels[labels != -100]
        p = probabilities(model, logits)
        figures = {
            **{f"loss_{u:g}": eps_perplexity(p, y, uniform_share=u).log() for u in UNIFORM},
            "missed": (p.gather(-1, y[:, None]) == 0).float().mean(),
            "accuracy": (p.argmax(-1) == y).float().mean(),
            "sparsemax_score": sparsemax_score(p, y),
            "support": support_size(p).float().mean(),
        }
        for name, value in figures.items():
            sums[name] = sums.get(name, 0.0) + float(value) * len(y)
        count += len(y)
    model.train(training)
    means = {name: value / count for name, value in sums.items()}
    loss_at = {f"{u:g}": means.pop(f"loss_{u:g}") for u in UNIFORM}
    return {"loss": loss_at[f"{UNIFORM[0]:g}"], "loss_at": loss_at, **means, "tokens": count}
