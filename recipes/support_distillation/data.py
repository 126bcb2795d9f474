"""The text of teacher and student, as rows of tokens."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ..language_modelling.data import blocks, learn_tokenizer, read_text


class Rows(NamedTuple):
    """Rows of tokens to train on and to test on, their tokenizer, and the name of the text."""

    train: Dataset
    test: Tensor
    tokenizer: PreTrainedTokenizerFast
    what: str


@functools.lru_cache(maxsize=1)
def read_rows(data: str, vocabulary: int, context: int, train_rows: int, test_rows: int) -> Rows:
    """Read a text and cut it into rows, once for all runs that share them.

    Args:
        data: see ``recipes.language_modelling.data.read_text``.
        vocabulary: largest number of tokens.
        context: tokens of a row.
        train_rows: most rows to train on.
        test_rows: most rows to test on, of other articles.

    Raises:
        OSError: nothing has that name.
        ValueError: there is no text, or too little for a row; see ``read_text``.
    """
    text = read_text(data)
    tokenizer = learn_tokenizer(text.train, vocabulary)
    train = Dataset.from_dict({"input_ids": blocks(tokenizer, text.train, context, train_rows)})
    return Rows(train, torch.tensor(blocks(tokenizer, text.test, context, test_rows)), tokenizer, text.what)
