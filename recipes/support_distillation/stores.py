"""What is kept of a teacher's distributions: its sparse support, its likeliest classes, or classes drawn from it.

All have the columns of ``hf_sparse.store_supports``, so that one trainer reads them all; it divides the weights of a
label by their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import torch
from datasets import Dataset, Features, List, Value
from pyarrow import parquet
from torch import Tensor
from transformers import PreTrainedModel

import hf_sparse
from hf_sparse.training.labels import shifts_labels
from hf_sparse.training.supports import IDS, PROBABILITIES

from ..lib.batches import collate

# High bytes of sorted classes and probabilities repeat: apart from the low ones they are compressed to a few bits.
PARQUET: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "use_byte_stream_split": True}


def top_k(p: Tensor, count: int) -> Tensor:
    """The likeliest classes, renormalized.

    Args:
        p: (..., V) distributions.
        count: of classes.

    >>> top_k(torch.tensor([0.5, 0.3, 0.2]), 2)
    tensor([0.6250, 0.3750, 0.0000])
    """
    values, ids = p.topk(count)
    return torch.zeros_like(p).scatter(-1, ids, values / values.sum(-1, keepdim=True))


def counted(p: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """How often each class is drawn from the distributions with replacement: divided by their sum, unbiased estimates.

    Drawn from p itself, all importance weights are equal.

    Args:
        p: (N, V) distributions.
        count: of draws, at most 255.
        generator: draws them.

    Source: Anshumann et al. 2025, Sparse Logit Sampling (RS-KD), Section 3, with a proposal of temperature 1.
    """
    drawn = torch.multinomial(p, count, replacement=True, generator=generator)
    return torch.zeros_like(p).scatter_add(-1, drawn, torch.ones_like(drawn, dtype=p.dtype))


def supports(teacher: PreTrainedModel, rows: Dataset, fit: list[dict[str, Tensor]], classes: float) -> Dataset:
    """The rows with the calibrated support of a teacher, which is made sparse for it.

    Args:
        teacher: dense; its head becomes 1.5-entmax.
        rows: with ``input_ids``.
        fit: batches to calibrate on.
        classes: mean number of classes to keep.
    """
    hf_sparse.sparsify(teacher, head="entmax15", example=fit[0])
    hf_sparse.calibrate(teacher, fit, classes=classes, progress=False)
    return hf_sparse.store_supports(teacher, rows, collate, batch_size=16)


def kept(teacher: PreTrainedModel, rows: Dataset, keep: Callable[[Tensor], Tensor], dtype: str) -> Dataset:
    """The rows with part of the softmax distributions of a dense teacher.

    Args:
        teacher: dense, in evaluation mode, with at most 65,536 classes.
        rows: with ``input_ids``.
        keep: makes sparse weights of distributions (N, V).
        dtype: of the weights that are stored.
    """

    @torch.no_grad()
    def stored(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = torch.tensor(columns["input_ids"])
        found: dict[str, list[Any]] = {IDS: [], PROBABILITIES: []}
        for logits in teacher(input_ids=ids).logits:
            q = keep((logits[:-1] if shifts_labels(teacher) else logits).float().softmax(-1))
            places = [row.nonzero()[:, 0] for row in q]
            found[IDS].append([place.tolist() for place in places])
            found[PROBABILITIES].append([row[place].tolist() for row, place in zip(q, places)])
        return found

    features = rows.features.copy()
    features.update({IDS: List(List(Value("uint16"))), PROBABILITIES: List(List(Value(dtype)))})
    return rows.map(stored, batched=True, batch_size=16, features=features, new_fingerprint=f"kept-{id(keep)}")


def bytes_a_token(rows: Dataset) -> float:
    """Bytes of what is kept, both columns as a Parquet file, for each label that counts."""
    return _file_size(rows.select_columns([IDS, PROBABILITIES])) / sum(map(len, rows[IDS]))


def bytes_of_whole(p: Tensor) -> float:
    """Bytes of whole distributions (N, V) as a Parquet file in float32, for each."""
    column = {PROBABILITIES: List(Value("float32"))}
    return _file_size(Dataset.from_dict({PROBABILITIES: p.tolist()}, Features(column))) / len(p)


def _file_size(rows: Dataset) -> int:
    file = BytesIO()
    parquet.write_table(rows.data.table, file, **PARQUET)
    return file.tell()
