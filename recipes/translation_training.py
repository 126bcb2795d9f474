"""The model of the translation recipes, and what it is trained on."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    set_seed,
)
from translation_corpus import Corpus, Pair, build_tokenizer, read_named

LONGEST = 128  # tokens; longer training pairs are left out, longer translations cut


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A fresh Marian-like model of about two million parameters."""
    set_seed(seed)
    config = MarianConfig(
        vocab_size=len(tokenizer),
        d_model=160,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=640,
        decoder_ffn_dim=640,
        max_position_embeddings=LONGEST + 2,
        init_std=0.06,
        scale_embedding=True,  # without, sinusoidal positions drown the words and the source is never looked at
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config)
    model.generation_config.max_length = None
    model.generation_config.max_new_tokens = LONGEST
    # The start token is the padding token, which Transformers would otherwise also forbid.
    model.generation_config.bad_words_ids = [[tokenizer.pad_token_id]]
    return model


def encode(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerFast) -> Dataset:
    """Token ids of both sides, without pairs of more than ``LONGEST`` tokens."""
    sources = tokenizer([pair.source for pair in pairs]).input_ids
    targets = tokenizer([pair.target for pair in pairs]).input_ids
    rows = [
        {"input_ids": source, "labels": target, "length": len(source)}
        for source, target in zip(sources, targets)
        if max(len(source), len(target)) <= LONGEST
    ]
    return Dataset.from_list(rows)


class Task(NamedTuple):
    """A corpus, a tokenizer of its training part, and the rows to train on."""

    corpus: Corpus
    tokenizer: PreTrainedTokenizerFast
    rows: Dataset


@functools.lru_cache(maxsize=2)
def prepared(data: str, source: str, target: str, reverse: bool, train_rows: int, vocabulary: int) -> Task:
    """The corpus that ``read_named`` reads, in the direction asked for.

    Args:
        data: see ``read_named``.
        source: language, for a folder or a data set.
        target: language.
        reverse: exchange the sides.
        train_rows: train on the first so many pairs; 0 for all.
        vocabulary: the most tokens there may be.
    """
    corpus = read_named(data, source, target)
    if reverse:
        corpus = Corpus(*([Pair(pair.target, pair.source) for pair in part] for part in corpus))
    if train_rows:
        corpus = corpus._replace(train=corpus.train[:train_rows])
    tokenizer = build_tokenizer(corpus.train, vocabulary)
    return Task(corpus, tokenizer, encode(corpus.train, tokenizer))


class Collator(DataCollatorForSeq2Seq):
    """Pads a batch, with the fertility bounds of its source tokens where the rows have them."""

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        """Pad ``features``; bounds of padding are zero."""
        bounds = [torch.tensor(row["fertility"]) for row in features if "fertility" in row]
        kept = [{key: row[key] for key in ("input_ids", "labels")} for row in features]
        batch = super().__call__(kept, return_tensors)
        if bounds:
            batch["fertility"] = pad_sequence(bounds, batch_first=True)
        return batch
