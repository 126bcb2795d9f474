"""The Marian-like model of the translation recipes, and its training rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from datasets import Dataset
from transformers import (
    BatchEncoding,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    set_seed,
)

from .data import Corpus, Pair, build_tokenizer

LONGEST = 128  # tokens; longer training pairs are left out, longer sources and translations cut


def build_model(
    tokenizer: PreTrainedTokenizerFast, seed: int, dropout: float = 0.1, tied: bool = True
) -> PreTrainedModel:
    """A fresh dense model of about two million parameters; the same seed gives the same weights.

    Args:
        tokenizer: of both languages.
        seed: of the weights.
        dropout: after every sublayer.
        tied: whether encoder, decoder and head share one matrix of embeddings; else each has its own.
    """
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
        dropout=dropout,
        max_position_embeddings=LONGEST + 2,
        init_std=0.06,
        tie_word_embeddings=tied,
        share_encoder_decoder_embeddings=tied,
        scale_embedding=True,  # otherwise sinusoidal positions drown the words, and the source is ignored
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config)
    model.generation_config.max_length = None
    model.generation_config.max_new_tokens = LONGEST
    # The start token is the padding token: do not generate it.
    model.generation_config.bad_words_ids = [[tokenizer.pad_token_id]]
    return model


def for_training(model: PreTrainedModel, bf16: bool) -> PreTrainedModel:
    """A dense model with the attention that is fast in training; its products may be made in bfloat16."""
    if bf16:  # torch's fused attention is slow in bfloat16 for rows as short as these
        model.set_attn_implementation("eager")
    return model


def encode(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerFast) -> Dataset:
    """Token ids of both sides; pairs longer than ``LONGEST`` tokens are left out."""
    sources = tokenizer([pair.source for pair in pairs]).input_ids
    targets = tokenizer([pair.target for pair in pairs]).input_ids
    rows = [
        {"input_ids": source, "labels": target, "length": len(source)}
        for source, target in zip(sources, targets)
        if max(len(source), len(target)) <= LONGEST
    ]
    return Dataset.from_list(rows)


def as_read(texts: str | Sequence[str], tokenizer: PreTrainedTokenizerBase) -> BatchEncoding:
    """Texts as the model reads them: tensors of token ids, padded, no row longer than ``LONGEST``."""
    rows = [texts] if isinstance(texts, str) else list(texts)
    return tokenizer(rows, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")


class Task(NamedTuple):
    """A corpus, a tokenizer learned from its training part, and the training rows."""

    corpus: Corpus
    tokenizer: PreTrainedTokenizerFast
    rows: Dataset


def prepared(corpus: Corpus, vocabulary: int) -> Task:
    """Learn a tokenizer of at most ``vocabulary`` tokens from a corpus, and encode its training part."""
    tokenizer = build_tokenizer(corpus.train, vocabulary)
    return Task(corpus, tokenizer, encode(corpus.train, tokenizer))
