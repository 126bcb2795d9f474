"""Batches of texts, of rows of one length, and of encoder-decoder rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

from hf_sparse import FertilityCollator


def by_length(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    """Indices of ``texts`` in batches of at most ``size``, shortest first, so that there is little padding."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def padding_collator(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> FertilityCollator:
    """Pads token ids of both sides, and the fertility bounds of source tokens if the rows have them."""
    return FertilityCollator(DataCollatorForSeq2Seq(tokenizer, model))


def collate(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Batch of rows of one length; the labels are the inputs."""
    ids = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": ids, "labels": ids}
