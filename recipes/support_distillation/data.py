"""The text of teacher and student, as rows of tokens."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..language_modelling.data import blocks, learn_tokenizer, read_text
from ..pretrained.sources import tokenizer_of


class Rows(NamedTuple):
    """Rows of tokens to train on and to test on, their tokenizer, and the name of the text."""

    train: Dataset
    test: Tensor
    tokenizer: PreTrainedTokenizerBase
    what: str


@functools.lru_cache(maxsize=1)
def read_rows(data: str, tokens: int | str, context: int, train_rows: int, test_rows: int) -> Rows:
    """Read a text and cut it into rows, once for all runs that share them.

    Args:
        data: see ``recipes.language_modelling.data.read_text``.
        tokens: largest number of them in a vocabulary learned from the text; or a pretrained model, which has its own.
        context: tokens of a row.
        train_rows: most rows to train on.
        test_rows: most rows to test on, of other articles.

    Raises:
        OSError: nothing has that name.
        ValueError: there is no text, or too little for a row (see ``read_text``), or the model is not installed.
    """
    text = read_text(data)
    tokenizer = learn_tokenizer(text.train, tokens) if isinstance(tokens, int) else tokenizer_of(tokens)
    train = Dataset.from_dict({"input_ids": blocks(tokenizer, text.train, context, train_rows)})
    return Rows(train, torch.tensor(blocks(tokenizer, text.test, context, test_rows)), tokenizer, text.what)
