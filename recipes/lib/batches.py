"""Batches of texts and of encoder-decoder rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DataCollatorForSeq2Seq


def by_length(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    """Indices of ``texts`` in batches of at most ``size``, shortest first, so that there is little padding."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


class Collator(DataCollatorForSeq2Seq):
    """Pads token ids of both sides, and the fertility bounds of source tokens if the rows have them."""

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        """Pad ``features``; bounds of padding are zero."""
        bounds = [torch.tensor(row["fertility"]) for row in features if "fertility" in row]
        kept = [{key: row[key] for key in ("input_ids", "labels")} for row in features]
        batch = super().__call__(kept, return_tensors)
        if bounds:
            batch["fertility"] = pad_sequence(bounds, batch_first=True)
        return batch
