"""The user's data: read once, checked, and answered by the model as its own loss reads the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from ..functional.arguments import check_count
from ..functional.head_weight import num_classes
from ..functional.rows import upcast
from ..model.dense_blocks import dense_head
from ..model.dry_run import input_device
from ..model.head_loss import CROSS_ENTROPY
from ._padding import counted, frame_mask

Batch = dict[str, Any]


def read_batches(dataloader: Iterable[Any], max_batches: int | None, labels_for: str = "") -> list[Batch]:
    """The first batches of a loader, kept, so that every measurement sees the same data.

    Args:
        dataloader: anything that yields keyword arguments for the model's forward.
        max_batches: how many to read; None reads all.
        labels_for: the purpose that needs labels; empty where batches may come without.

    Raises:
        ValueError: no batch, or an empty one; one row in place of a batch; labels in some batches only, or none where
            they are needed; no label that counts.
        TypeError: nothing that yields batches, batches that are not mappings or without a tensor, labels that are no
            tensor of whole numbers, or a count that is none.
    """
    if max_batches is not None:
        check_count("max_batches", max_batches, ", or None for all")
    if isinstance(dataloader, Mapping):
        raise TypeError(
            f"dataloader must yield batches, was one batch of {', '.join(dataloader)}: give a list, [batch]"
        )
    if not isinstance(dataloader, Iterable):
        raise TypeError(f"dataloader must yield batches, was {dataloader!r}")
    batches: list[Batch] = []
    for batch in islice(dataloader, max_batches):
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"the loader must yield mappings of the model's arguments, yielded {type(batch).__name__}; give it a "
                "collate_fn that does"
            )
        if not batch:
            raise ValueError(f"batch {len(batches)} of the loader is empty; it must have the model's arguments")
        if not any(map(torch.is_tensor, batch.values())):
            given = ", ".join(f"{name} is {type(value).__name__}" for name, value in batch.items())
            raise TypeError(
                f"batch {len(batches)} of the loader has no tensor ({given}); of a data set, give a DataLoader with a "
                "collator"
            )
        if torch.is_tensor(batch.get("input_ids")) and batch["input_ids"].dim() < 2:
            raise ValueError(
                f"batch {len(batches)} of the loader is one row, its input_ids are of shape "
                f"{tuple(batch['input_ids'].shape)}; of a data set, give a DataLoader with a collator"
            )
        batches.append(_with_whole_labels(dict(batch)))
    if not batches:
        raise ValueError("the loader is empty; it must yield at least one batch")
    _check_labels(batches, labels_for)
    return batches


def has_labels(batches: list[Batch]) -> bool:
    """Whether the first batch, and so each of them, has labels."""
    return batches[0].get("labels") is not None


def _check_labels(batches: list[Batch], labels_for: str) -> None:
    given = [bool((batch["labels"] != -100).any()) for batch in batches if batch.get("labels") is not None]
    needed_for = f"{labels_for} needs them" if labels_for else "others have" if given else ""
    if needed_for and len(given) < len(batches):
        without = next(number for number, batch in enumerate(batches) if batch.get("labels") is None)
        raise ValueError(
            f"batch {without} of the loader has no labels, and {needed_for} (it has: "
            f"{', '.join(map(repr, batches[without]))}); for a causal language model copy input_ids to labels, or use "
            "DataCollatorForLanguageModeling(mlm=False)"
        )
    if given and not any(given):
        raise ValueError("every label in the loader is -100 (ignored); there is nothing to measure on")


def _with_whole_labels(batch: Batch) -> Batch:
    """A batch whose labels, if it has any, are int64, as torch's cross-entropy takes them."""
    labels = batch.get("labels")
    if labels is None:
        return batch
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(
            f"labels of the loader's batches must be a tensor of whole numbers, were {kind}; leave them out to "
            "compare the model's outputs"
        )
    return {**batch, "labels": labels.long()}


class _CrossEntropyWatch(TorchFunctionMode):
    """Keeps what the model's own loss is computed from: logits and targets, shifted by the model's convention."""

    def __init__(self, num_classes: int | None) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))  # refuses what does not fit together
        if func is nn.functional.cross_entropy:
            call = CROSS_ENTROPY.bind(*args, **(kwargs or {}))
            call.apply_defaults()
            self._keep(**call.arguments)
        return output

    def _keep(self, input: Tensor, target: Tensor, ignore_index: int, **_: object) -> None:
        """The rows of a call over the head's classes whose target counts."""
        z = input.movedim(1, -1) if input.dim() > 1 else input
        if target.is_floating_point() or self.num_classes not in (None, z.shape[-1]):
            return
        kept = target != ignore_index
        self.seen.append((z[kept], target[kept]))


def on_device(model: PreTrainedModel, batch: Batch) -> Batch:
    """The batch where the model is, or takes its input from."""
    device = input_device(model)
    return {key: value.to(device) if torch.is_tensor(value) else value for key, value in batch.items()}


def scored(model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits (N, V) and targets (N,) of one batch, at the positions that count in the model's own loss.

    Args:
        model: a Transformers model, in evaluation mode.
        batch: keyword arguments for one forward call, labels among them.

    Returns:
        Logits in float32 at least, and class indices.

    Raises:
        ValueError: the model computes no cross-entropy over its classes from these labels.
    """
    head = model.get_output_embeddings()
    watch = _CrossEntropyWatch(num_classes(head) if hasattr(head, "weight") else None)
    with dense_head(model), watch:
        model(**on_device(model, batch))
    if not watch.seen:
        raise ValueError(
            f"{type(model).__name__} computes no cross-entropy over its classes from these labels, so there is no "
            "distribution to compare; leave the labels out to compare its outputs"
        )
    logits, targets = (torch.cat(parts) for parts in zip(*watch.seen))
    return upcast(logits), targets


@dataclass(frozen=True)
class Answer:
    """The output of a model for one batch, at the positions that count.

    Attributes:
        rows: logits (N, V), -inf for a class that is padding, or hidden states (N, d), float32 at least.
        target: classes (N,), None without labels.
        is_logits: whether rows are scores of classes.
        of_places: whether the classes are the positions of the batch.
    """

    rows: Tensor
    target: Tensor | None
    is_logits: bool
    of_places: bool = False

    def split(self, size: int) -> Iterator[Answer]:
        """The same, ``size`` positions at a time."""
        for start in range(0, len(self.rows), size):
            some = slice(start, start + size)
            yield replace(self, rows=self.rows[some], target=None if self.target is None else self.target[some])


def answer(model: PreTrainedModel, batch: Batch) -> Answer:
    """Run a model on one batch, with softmax at its head.

    With labels, the rows are those of ``scored``. Without, they are the model's ``logits``, or else its
    ``last_hidden_state``, at the positions that the batch's mask does not exclude. Logits of an image's places have
    their classes first, as torch's cross-entropy takes them. Where a model answers questions by the place of the
    answer, the rows are the scores of its start and of its end, and the classes are the positions.

    Raises:
        ValueError: see ``scored``; or an output with none of these, or with NaN in it.
    """
    found = _answer(model, batch)
    if bool(found.rows.amax(-1).isnan().any()):
        raise ValueError(f"the output of this {type(model).__name__} is NaN; look at its weights and inputs")
    return found


def _answer(model: PreTrainedModel, batch: Batch) -> Answer:
    if batch.get("labels") is not None:
        return Answer(*scored(model, batch), is_logits=True)
    with dense_head(model):
        output = model(**on_device(model, batch))
    found = dict(output) if isinstance(output, Mapping) else {}
    kind = "decoder" if model.config.is_encoder_decoder else "encoder"
    if found.keys() >= {"start_logits", "end_logits"}:
        places = upcast(torch.stack((found["start_logits"], found["end_logits"]), 1))
        kept = counted(batch, kind, model.config.is_encoder_decoder, (len(places), places.shape[-1]))
        if kept is not None:
            places = places.masked_fill(~kept[:, None].to(places.device), -torch.inf)
        return Answer(places.flatten(0, 1), None, is_logits=True, of_places=True)
    name = next((name for name in ("logits", "last_hidden_state") if torch.is_tensor(found.get(name))), None)
    if name is None:
        raise ValueError(
            f"{type(model).__name__} returns no logits, start_logits or last_hidden_state to compare (it returns: "
            f"{', '.join(found) or type(output).__name__}); give a part of it that does"
        )
    rows: Tensor = upcast(found[name])
    if name == "logits" and rows.dim() == 4 and rows.shape[1] == model.config.num_labels:  # of each place of an image
        rows = rows.movedim(1, -1)
    if rows.dim() == 3:
        kept = counted(batch, kind, model.config.is_encoder_decoder, rows.shape[:2], frame_mask(model))
        rows = rows.flatten(0, 1) if kept is None else rows[kept.to(rows.device)]
    return Answer(rows.flatten(0, -2), None, is_logits=name == "logits" and rows.shape[-1] > 1)


def split(batches: list[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Batches to fit on and batches to judge on: every fourth, the last among them; a single batch is both."""
    if len(batches) == 1:
        return batches, batches
    judged = range(len(batches) - 1, -1, -4) if len(batches) > 3 else range(len(batches) - 1, len(batches))
    kept = set(judged)
    return [b for i, b in enumerate(batches) if i not in kept], [b for i, b in enumerate(batches) if i in kept]
