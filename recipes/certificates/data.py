"""What the models read: sentences to translate, windows of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..translation.data import Pair
from ..translation.model import as_read

Batch = dict[str, Tensor]


def sentences(tokenizer: PreTrainedTokenizerBase, pairs: Sequence[Pair]) -> Iterator[Batch]:
    """A batch for each sentence, with its translation as labels."""
    for pair in pairs:
        yield {**as_read(pair.source, tokenizer), "labels": as_read(pair.target, tokenizer).input_ids}


def one_by_one(ids: Tensor) -> list[Batch]:
    """A batch for each row of token ids."""
    return [{"input_ids": row[None], "labels": row[None]} for row in torch.as_tensor(ids)]
