"""The two small models of the conversion recipe, the text they learn from, and how good a model is at it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from inflection_data import ENGLISH_VERBS, held_out, read_table
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

import hf_sparse
from hf_sparse.metrics import eps_perplexity, sparsemax_score, support_size

SPECIAL = ("<pad>", "<s>", "</s>")
CONTEXT = 64  # tokens in a row of text, and the most of a sentence
# How much of the uniform distribution is mixed into a model's own before its loss is taken, first the one compared.
UNIFORM = (0.01, 0.001, 0.1)


@dataclass
class Task:
    """What one model learns.

    Attributes:
        name: ``"gpt2"`` or ``"bart"``.
        tokenizer: of all its text, learned from the training rows.
        train: rows to train on.
        dev: rows held out.
        build: a fresh dense model; the same seed gives the same weights.
        collator: makes a batch of rows.
        what: the data, in words.
    """

    name: str
    tokenizer: PreTrainedTokenizerFast
    train: Dataset
    dev: Dataset
    build: Callable[[int], PreTrainedModel]
    collator: Any
    what: str

    def loader(self, rows: Dataset, batch_size: int) -> DataLoader:
        """Batches of ``rows`` in their order."""
        return DataLoader(rows, batch_size, collate_fn=self.collator)


def read_lines(path: Path) -> list[str]:
    """The lines of a text file (UTF-8, gzip if its name ends in .gz), stripped; empty ones too.

    Raises:
        ValueError: the file is not UTF-8 text, or holds none.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = [line.strip() for line in content.decode("utf-8").splitlines()]
    except (UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: must be UTF-8 text, gzipped if its name ends in .gz: {error}") from error
    if not any(lines):
        raise ValueError(f"{path}: no text")
    return lines


def split(rows: list) -> tuple[list, list]:
    """Training rows, and the last tenth, which is held out."""
    cut = len(rows) - max(len(rows) // 10, 1)
    return rows[:cut], rows[cut:]


def text_lines(path: Path | None) -> tuple[list[str], list[str], str]:
    """Lines to train on and held out, and what they are; by default verbs, a line each with all their forms."""
    if path is not None:
        return *split([line for line in read_lines(path) if line]), f"{path.name}, its last tenth held out"
    forms: dict[str, list[str]] = {}
    for row in read_table(ENGLISH_VERBS):
        forms.setdefault(row["lemma"], []).append(row["form"])
    train, dev = _by_lemma([(lemma, " ".join(all_forms)) for lemma, all_forms in forms.items()])
    return train, dev, "English verbs, one in ten held out"


def pair_lines(source: Path | None, target: Path | None) -> tuple[list, list, str]:
    """Pairs of lines to train on and held out, and what they are; by default verbs with tags, and their forms.

    Raises:
        ValueError: files with different numbers of lines.
    """
    if source is None or target is None:
        rows = [(row["lemma"], (f"{row['lemma']} {row['tags']}", row["form"])) for row in read_table(ENGLISH_VERBS)]
        return *_by_lemma(rows), "English verbs, one in ten held out"
    sides = read_lines(source), read_lines(target)
    if len(sides[0]) != len(sides[1]):
        raise ValueError(f"{source} has {len(sides[0])} lines and {target} has {len(sides[1])}; they must be aligned")
    pairs = [pair for pair in zip(*sides) if all(pair)]
    return *split(pairs), f"{source.name} to {target.name}, their last tenth held out"


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


def text_task(options: Any) -> Task:
    """A GPT-2-like model that continues text."""
    train, dev, what = text_lines(options.text)
    tokenizer = learn_tokenizer(train, options.vocabulary)

    def blocks(lines: list[str], limit: int) -> Dataset:
        ids = [token for row in tokenizer(lines).input_ids for token in row]
        starts = range(0, max(len(ids) - CONTEXT, 1), CONTEXT)
        return Dataset.from_dict({"input_ids": [ids[start : start + CONTEXT] for start in starts][:limit]})

    def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
        ids = torch.tensor([row["input_ids"] for row in rows])
        return {"input_ids": ids, "labels": ids}

    def build(seed: int) -> PreTrainedModel:
        set_seed(seed)
        settings = {
            "vocab_size": len(tokenizer),
            "n_embd": options.width,
            "n_layer": options.layers,
            "n_head": 4,
            "n_positions": CONTEXT,
        }
        return GPT2LMHeadModel(GPT2Config(initializer_range=0.06, **settings, **_token_ids(tokenizer)))

    rows = blocks(train, options.train_rows), blocks(dev, options.dev_rows)
    return Task("gpt2", tokenizer, *rows, build, collate, what)


def pair_task(options: Any) -> Task:
    """A BART-like model that writes a target line for a source line."""
    train, dev, what = pair_lines(options.source, options.target)
    tokenizer = learn_tokenizer([line for pair in train for line in pair], options.vocabulary)

    def tokenized(pairs: list[tuple[str, str]]) -> Dataset:
        sides = [tokenizer(list(side), truncation=True, max_length=CONTEXT).input_ids for side in zip(*pairs)]
        return Dataset.from_dict({"input_ids": sides[0], "labels": sides[1]})

    def build(seed: int) -> PreTrainedModel:
        set_seed(seed)
        sides = ("encoder", "decoder")
        settings = {f"{side}_layers": max(options.layers - 1, 1) for side in sides}
        settings |= {f"{side}_attention_heads": 4 for side in sides}
        settings |= {f"{side}_ffn_dim": 4 * options.width for side in sides}
        config = BartConfig(
            vocab_size=len(tokenizer),
            d_model=options.width,
            max_position_embeddings=CONTEXT + 1,
            init_std=0.06,
            decoder_start_token_id=tokenizer.bos_token_id,
            forced_eos_token_id=None,
            **settings,
            **_token_ids(tokenizer),
        )
        return BartForConditionalGeneration(config)

    rows = tokenized(train[: options.train_rows]), tokenized(dev[: options.dev_rows])
    return Task("bart", tokenizer, *rows, build, DataCollatorForSeq2Seq(tokenizer), what)


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
