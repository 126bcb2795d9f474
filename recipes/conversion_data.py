"""The two small models of the conversion recipe, the text they learn from, and how good a model is at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from inflection_data import ENGLISH_VERBS, held_out, read_table
from language_data import Text, blocks, read_text
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.utils.data import DataLoader
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    DataCollatorForSeq2Seq,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    set_seed,
)
from translation_corpus import Pair, read_named

import hf_sparse
from hf_sparse.metrics import eps_perplexity, sparsemax_score, support_size

VERBS = "English verbs, one in ten held out"
SPECIAL = ("<pad>", "<s>", "</s>")
CONTEXT = 64  # tokens in a row of text, and the most of a sentence
# How much of the uniform distribution is mixed into a model's own before its loss is taken, first the one compared.
UNIFORM = (0.01, 0.001, 0.1)


@dataclass
class Task:
    """What one model learns.

    Attributes:
        model_class: of the model, to read one that was saved.
        tokenizer: of all its text, learned from the training rows.
        train: rows to train on.
        dev: rows held out.
        build: a fresh dense model; the same seed gives the same weights.
        collator: makes a batch of rows.
        what: the data, in words.
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


def text_lines(data: str) -> Text:
    """Texts to train on and held out: what ``data`` names, see ``read_text``; by default verbs, a line for each."""
    if data:
        return read_text(data)
    forms: dict[str, list[str]] = {}
    for row in read_table(ENGLISH_VERBS):
        forms.setdefault(row["lemma"], []).append(row["form"])
    return Text(*_by_lemma([(lemma, " ".join(all_forms)) for lemma, all_forms in forms.items()]), VERBS)


def line_pairs(data: str, source: str, target: str) -> tuple[list[Pair], list[Pair], str]:
    """Pairs to train on and held out, and what they are.

    Args:
        data: see ``read_named``; its development part is what is held out, and its test part is left alone. By default
            verbs with tags and their forms.
        source: language, for a folder or a data set.
        target: language.
    """
    if data:
        corpus = read_named(data, source, target)
        return corpus.train, corpus.dev, Path(data).name if Path(data).exists() else data
    rows = [(row["lemma"], Pair(f"{row['lemma']} {row['tags']}", row["form"])) for row in read_table(ENGLISH_VERBS)]
    return *_by_lemma(rows), VERBS


def _by_lemma(rows: list[tuple[str, Any]]) -> tuple[list, list]:
    return [row for lemma, row in rows if not held_out(lemma)], [row for lemma, row in rows if held_out(lemma)]


def learn_tokenizer(lines: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE learned from ``lines``; ``</s>`` ends every text."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        lines,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def text_task(settings: Any) -> Task:
    """A GPT-2-like model that continues text."""
    text = text_lines(settings.data)
    tokenizer = learn_tokenizer(text.train, settings.vocabulary)

    def rows(texts: list[str], limit: int) -> Dataset:
        return Dataset.from_dict({"input_ids": blocks(tokenizer, texts, CONTEXT, limit or None)})

    def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
        ids = torch.tensor([row["input_ids"] for row in rows])
        return {"input_ids": ids, "labels": ids}

    def build(seed: int) -> PreTrainedModel:
        set_seed(seed)
        config = GPT2Config(
            vocab_size=len(tokenizer),
            n_embd=settings.width,
            n_layer=settings.layers,
            n_head=4,
            n_positions=CONTEXT,
            initializer_range=0.06,
            **_token_ids(tokenizer),
        )
        return GPT2LMHeadModel(config)

    train, dev = rows(text.train, settings.train_rows), rows(text.test, settings.dev_rows)
    return Task(GPT2LMHeadModel, tokenizer, train, dev, build, collate, text.what)


def pair_task(settings: Any) -> Task:
    """A BART-like model that writes a target line for a source line."""
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
def evaluate(model: PreTrainedModel, task: Task, batch_size: int) -> dict[str, float]:
    """How good ``model`` is on the held-out rows, in numbers that mean the same for every map.

    Returns:
        ``loss``, the mean of ``-log((1 - u) p_x + u / V)`` in nats a token, with ``u = UNIFORM[0]``: log of the
        eps-perplexity at ``eps = u / ((1 - u) V)``; ``loss_at``, that for every ``u``; ``missed``, the share of
        tokens to which the model gives no probability; ``accuracy`` of the likeliest token; ``sparsemax_score``; and
        ``support``, the mean number of tokens of nonzero probability.
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
        p = hf_sparse.probabilities(model, logits) if hf_sparse.is_sparse(model) else logits.softmax(-1)
        figures = {
            **{f"loss_{u:g}": eps_perplexity(p, y, u / ((1 - u) * p.shape[-1])).log() for u in UNIFORM},
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
