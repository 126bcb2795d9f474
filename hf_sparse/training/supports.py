"""Supports as data: sparse distributions of a teacher or draws from it, stored beside the rows of its students."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import torch
from torch import Tensor
from transformers import PreTrainedModel, default_data_collator

from ..config import MapConfig
from ..functional.arguments import check_count, items_divisor
from ..functional.head_weight import num_classes
from ..model.distribution import distribution
from ..model.dry_run import quiet_evaluation
from ..model.find import is_sparse, sparse_config, transformers_model
from ..model.lazy_logits import LinearLogits
from ..model.readings import raw_scores
from .drawn_support import drawn_support
from .labels import shifts_labels

if TYPE_CHECKING:
    from datasets import Dataset

IDS, PROBABILITIES = "support_ids", "support_probabilities"
# Formats of data sets whose batches are tables, not lists of columns.
_TABLES = ("arrow", "pandas", "polars")

Row = dict[str, Any]


def store_supports(
    teacher: PreTrainedModel,
    dataset: Dataset,
    data_collator: Callable[[list[Row]], dict[str, Any]] | None = None,
    *,
    draws: int | None = None,
    seed: int = 0,
    batch_size: int = 8,
) -> Dataset:
    """Run a teacher once, and keep its distribution at every label that counts, or an unbiased estimate of it.

    ``SparseTrainer`` and ``SparseSeq2SeqTrainer`` read the two columns with ``distillation_weight`` above 0, and need
    no teacher. Without ``draws`` the classes of nonzero probability are kept, all of them: the student's loss is that
    of training beside the teacher, up to rounding. With ``draws`` that many classes are: the likeliest with their
    probabilities, others at random with one weight, so that their mean is the whole distribution, and the mean of the
    student's gradient that of training beside the teacher (theorem: ``hf_sparse.training.drawn_support``).

    Args:
        teacher: a language model, in any precision and on any device. Without ``draws`` its head is sparse, and
            calibrated for small supports (``calibrate(teacher, loader, classes=64)``).
        dataset: tokenized rows, with all that the trainer reads.
        data_collator: the one that will be trained with, or another that leaves the same labels in every row; None is
            Transformers' default. One that masks at random leaves others each time: mask first. One that joins rows
            into one, as ``DataCollatorWithFlattening``, is for training alone: store with one that pads.
        draws: classes to keep at each label, from any distribution, dense or sparse; None keeps all that are nonzero.
        seed: of the draws. For an epoch with other draws store the rows again with another seed;
            ``datasets.concatenate_datasets`` puts the epochs into one.
        batch_size: rows per forward pass.

    Returns:
        The data set with two ragged columns more, which have a list for each label that counts, in order:
        ``support_ids`` (uint16, int32 for more than 65,536 classes) and ``support_probabilities``, float32. With
        ``draws`` these are float16, and fewer than the classes: the last one is that of all further classes.

    Raises:
        ValueError: a dense head without ``draws``; batches without labels, or logits that do not go with them position
            by position, or fewer rows than the data; no language-model head; ``draws`` or ``batch_size`` below 1.
        TypeError: not a ``datasets.Dataset``; ``draws`` or ``batch_size`` that is no whole number.

    Cost: a forward pass per row.

    >>> from datasets import Dataset
    >>> from hf_sparse import sparsify
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> _ = torch.manual_seed(0)
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    >>> teacher = LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes))
    >>> rows = Dataset.from_dict({"input_ids": [[1, 5, 7]], "labels": [[1, 5, 7]]})
    >>> store_supports(teacher, rows, draws=4)["support_ids"][0]
    [[2, 7, 12, 17], [3, 8, 13, 18]]
    >>> teacher = sparsify(teacher, head={"name": "entmax15", "temperature": 0.1})
    >>> store_supports(teacher, rows)["support_ids"][0]
    [[2, 3, 6, 11, 13, 15, 18], [1, 2, 3, 4, 5, 7, 10, 11, 12, 13, 14, 15, 18]]
    """
    from datasets import Dataset, List, Value

    check_count("batch_size", batch_size)
    if draws is not None:
        check_count("draws", draws, ", or None")
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"dataset must be a datasets.Dataset, was {type(dataset).__name__}; store each split by itself"
        )
    inner = transformers_model(teacher)
    head = sparse_config(teacher).head if is_sparse(teacher) else None
    if head is None and draws is None:
        raise ValueError(
            f"the head of the teacher, a {type(inner).__name__}, is dense: every class has nonzero probability. Pass "
            "draws=64, say, for unbiased estimates, or make it sparse and small first: sparsify(teacher, head=...), "
            "then calibrate(teacher, loader, classes=64)"
        )
    classes = inner.get_output_embeddings()
    if classes is None:
        raise ValueError(f"the teacher, a {type(inner).__name__}, has no language-model head")
    collate = data_collator or default_data_collator
    # Those that Trainer leaves: a collator need not know others.
    taken = {*inspect.signature(inner.forward).parameters, "labels", "label", "label_ids"}
    generator = torch.Generator().manual_seed(seed)
    shifts = shifts_labels(teacher)

    def supports(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        known = {name: values for name, values in columns.items() if name in taken}
        rows = [dict(zip(known, values)) for values in zip(*known.values())]
        found: dict[str, list[Any]] = {IDS: [], PROBABILITIES: []}
        with quiet_evaluation(teacher):
            batch = collate(rows)
            _check_labels(batch, len(rows))
            for p in _distributions(teacher, head or MapConfig("softmax"), batch, shifts):
                ids, kept = _all_of(p) if draws is None else _drawn_from(p, draws, generator)
                found[IDS].append(ids)
                found[PROBABILITIES].append(kept)
        return found

    small = num_classes(classes) <= 2**16
    added = {
        IDS: List(List(Value("uint16" if small else "int32"))),
        PROBABILITIES: List(List(Value("float32" if draws is None else "float16"))),
    }
    features = dataset.features.copy()
    features.update(added)
    options = {"batched": True, "batch_size": batch_size, "load_from_cache_file": False, "features": features}
    # A fingerprint of its own: the usual one hashes the function, and with it the teacher.
    form = dataset.format["type"]
    rows = dataset.with_format(None) if form in _TABLES else dataset
    stored: Dataset = rows.map(supports, new_fingerprint=uuid4().hex, desc="teacher", **options)
    return stored.with_format(form) if form in _TABLES else stored


def _check_labels(batch: dict[str, Any], num_rows: int) -> None:
    """Refuse a batch without labels, or in which rows of the data are joined.

    Raises:
        ValueError: it is one.
    """
    if batch.get("labels") is None:
        raise ValueError("store_supports needs labels, which tell the positions that count; the collator made none")
    if len(batch["labels"]) != num_rows:
        raise ValueError(
            f"the collator made {len(batch['labels'])} rows of labels of {num_rows} rows of the data, and supports "
            "are stored row by row; store them with a collator that pads, and train with your own"
        )


def _distributions(teacher: PreTrainedModel, head: MapConfig, batch: dict[str, Any], shifts: bool) -> Iterator[Tensor]:
    """The distributions (labels that count, V) of each row of a batch; ``shifts`` is that of ``shifts_labels``."""
    device = teacher.device
    given = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
    labels = given["labels"]
    if not teacher.config.is_encoder_decoder:  # others make the decoder's input from the labels
        given.pop("labels")
    with raw_scores(teacher) if is_sparse(teacher) else nullcontext():
        logits = teacher(**given).logits
    check_positions(logits, labels, "store_supports")
    if shifts:
        logits, labels = logits[:, :-1], labels[:, 1:]
    for scores, own in zip(logits, labels):
        yield distribution(head, scores[own != -100]).float()


def _all_of(p: Tensor) -> tuple[list[list[int]], list[list[float]]]:
    """All classes of nonzero probability, and these."""
    p = p.cpu()
    support = [row.nonzero()[:, 0] for row in p]
    return [ids.tolist() for ids in support], [row[ids].tolist() for row, ids in zip(p, support)]


def _drawn_from(p: Tensor, draws: int, generator: torch.Generator) -> tuple[list[list[int]], list[list[float]]]:
    """The classes that are drawn, and their weights, of which the last is that of all further classes."""
    p = p.cpu() if p.device.type == "mps" else p  # which has no float64
    offset = torch.rand(len(p), dtype=torch.float32, generator=generator, device="cpu").to(p.device)
    ids, q, num_certain = (part.cpu() for part in drawn_support(p, draws, offset))
    nonzero = (q > 0).sum(-1)
    classes = [row[:count].tolist() for row, count in zip(ids, nonzero)]
    return classes, [row[: min(certain + 1, count)].tolist() for row, certain, count in zip(q, num_certain, nonzero)]


def check_positions(logits: Tensor | LinearLogits, labels: Tensor, purpose: str) -> None:
    """Refuse logits that do not go with their labels position by position.

    Raises:
        ValueError: shapes that differ in more than the vocabulary.
    """
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} must agree in all but the vocabulary for "
            f"{purpose}"
        )


def has_supports(dataset: object) -> bool:
    """Whether a data set tells that it has the columns of ``store_supports``."""
    return {IDS, PROBABILITIES} <= set(getattr(dataset, "column_names", None) or ())


def without_supports(inputs: Row) -> Row:
    """A batch for a model, which takes no supports."""
    return {name: value for name, value in inputs.items() if name not in (IDS, PROBABILITIES)}


class SupportCollator:
    """A data collator that pads the columns of ``store_supports`` and leaves the rest to another collator.

    Args:
        collator: makes a batch of the other columns.
    """

    def __init__(self, collator: Callable[[list[Row]], dict[str, Any]]) -> None:
        self.collator = collator

    @property
    def tokenizer(self) -> Any:
        """That of the other collator, which Trainer saves with the model."""
        tokenizer: Any = self.collator.tokenizer  # type: ignore[attr-defined]
        return tokenizer

    def __call__(self, features: Sequence[Row]) -> dict[str, Any]:
        """Make a batch; rows without the columns give a batch without them.

        Returns:
            The batch of the other collator, with both columns (rows, labels, classes), 0 at padding.
        """
        batch = self.collator([without_supports(row) if isinstance(row, Mapping) else row for row in features])
        if all(isinstance(row, Mapping) and IDS in row for row in features):
            sizes = [list(map(len, row[IDS])) for row in features]
            batch[IDS] = _padded([row[IDS] for row in features], sizes, torch.long)
            batch[PROBABILITIES] = _padded([row[PROBABILITIES] for row in features], sizes, torch.float32)
        return batch


def _padded(rows: list[list[list[float]]], sizes: list[list[int]], dtype: torch.dtype) -> Tensor:
    """The entries of ragged rows, with room for one class at least; a list shorter than its size repeats its last."""
    labels = max(map(len, sizes))
    classes = max((size for row in sizes for size in row), default=1)
    padded = torch.zeros(len(rows), labels, classes, dtype=dtype, device="cpu")
    for number, row in enumerate(rows):
        for place, (entries, size) in enumerate(zip(row, sizes[number])):
            given = torch.as_tensor(entries, dtype=dtype, device="cpu")
            padded[number, place, : len(given)] = given
            padded[number, place, len(given) : size] = given[-1:]
    return padded


class Supports(NamedTuple):
    """Sparse distributions of N targets.

    Attributes:
        ids: (N, K) classes, 0 at padding.
        p: (N, K) their probabilities, 0 at padding.
    """

    ids: Tensor
    p: Tensor

    @classmethod
    def taken(cls, inputs: Row, counted: Tensor, num_classes: int) -> Supports:
        """Those of a batch.

        Args:
            inputs: a batch of ``SupportCollator``.
            counted: (rows, length) whether a label counts.
            num_classes: of the student.

        Raises:
            ValueError: no supports, those of other labels, or of another vocabulary.
        """
        if IDS not in inputs:
            raise ValueError("a batch came without supports; every row of the data must be one of store_supports")
        ids, p = inputs[IDS], inputs[PROBABILITIES]
        stored = p.sum(-1) > 0
        given, wanted = stored.sum(1), counted.sum(1)
        if len(wanted) == 1:  # a collator may join rows into one, in order
            given = given.sum(0, keepdim=True)
        if given.tolist() != wanted.tolist():
            raise ValueError(
                f"supports were stored for {given.tolist()} labels of the rows of a batch, in which {wanted.tolist()} "
                "count; store them with the collator that trains. If it pads on the left, the first label of a row "
                "counts only where the row is padded: pad on the right, or make that label -100"
            )
        if ids.numel() and int(ids.max()) >= num_classes:
            raise ValueError(f"the stored supports have class {int(ids.max())}, and the model {num_classes} classes")
        # float16 rounds their sum, too.
        return cls(ids[stored], p[stored] / p[stored].sum(-1, keepdim=True))

    def dense(self, num_classes: int) -> Tensor:
        """The distributions (N, num_classes)."""
        return self.p.new_zeros(len(self.p), num_classes).scatter_add(1, self.ids, self.p)

    def loss(self, map_config: MapConfig, logits: Tensor | LinearLogits, num_items: Tensor | int | None) -> Tensor:
        """``L(z, q)``, the mean over the targets, or their sum divided by ``num_items``.

        Without logits it is ``L(z, c) + z_c - <z, q> + Omega(q) - Omega(c)`` with c the likeliest class of q: the
        first term is the fused loss of a class, and the next two need the rows of the head at the support alone.

        Args:
            map_config: of the student.
            logits: (N, V), or ``LinearLogits``.
            num_items: see ``fenchel_young_loss``.
        """
        if not isinstance(logits, LinearLogits):
            return map_config.loss()(logits, self.dense(logits.shape[-1]), num_items=num_items)
        q = self.p
        place = q.argmax(-1, keepdim=True)
        likeliest = torch.zeros_like(q).scatter(1, place, 1.0)
        toward = logits.weighted_sum(self.ids, likeliest - q) / map_config.temperature
        regularizer = map_config.map.loss_regularizer()
        constant = regularizer(q, **map_config.map_settings) - regularizer(likeliest, **map_config.map_settings)
        counted = torch.ones(len(q), dtype=torch.bool, device=q.device)
        rest = (toward + constant).sum() / items_divisor(max(len(q), 1) if num_items is None else num_items, counted)
        return logits.loss(map_config, self.ids.gather(1, place)[:, 0], num_items=num_items) + rest
