"""The user's data: read once, checked, and scored as the model itself scores it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from ..functional.arguments import check_count
from ..functional.rows import upcast
from ..model.head_loss import CROSS_ENTROPY
from ..model.state import dense_head

Batch = dict[str, Any]


def read_batches(dataloader: Iterable[Any], max_batches: int | None) -> list[Batch]:
    """The first batches of a loader, kept, so that every measurement sees the same data.

    Args:
        dataloader: anything that yields keyword arguments for the model's forward, ``labels`` among them.
        max_batches: how many to read; None reads all.

    Raises:
        ValueError: no batch, one without labels, or no label that counts.
        TypeError: nothing that yields batches, batches that are not mappings, or a count that is none.
    """
    if max_batches is not None:
        check_count("max_batches", max_batches, ", or None for all")
    if not isinstance(dataloader, Iterable):
        raise TypeError(f"dataloader must yield batches, was {dataloader!r}")
    batches: list[Batch] = []
    for batch in islice(dataloader, max_batches):
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"the loader must yield mappings of the model's arguments, yielded {type(batch).__name__}; give it a "
                "collate_fn that does"
            )
        if batch.get("labels") is None:
            raise ValueError(
                f"batch {len(batches)} of the loader has no labels (it has: {', '.join(map(repr, batch))}); for a "
                "causal language model copy input_ids to labels, or use DataCollatorForLanguageModeling(mlm=False)"
            )
        if not isinstance(batch["labels"], Tensor | list | tuple | np.ndarray):
            raise TypeError(f"labels of the loader's batches must be a tensor, was {batch['labels']!r}")
        batches.append(dict(batch))
    if not batches:
        raise ValueError("the loader is empty; it must yield at least one batch")
    if not any(bool((torch.as_tensor(batch["labels"]) != -100).any()) for batch in batches):
        raise ValueError("every label in the loader is -100 (ignored); there is nothing to measure on")
    return batches


class _CrossEntropyWatch(TorchFunctionMode):
    """Keeps what the model's own loss is computed from: logits and targets, shifted by the model's convention."""

    def __init__(self, num_classes: int | None) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is nn.functional.cross_entropy:
            call = CROSS_ENTROPY.bind(*args, **(kwargs or {}))
            call.apply_defaults()
            self._keep(**call.arguments)
        return func(*args, **(kwargs or {}))

    def _keep(self, input: Tensor, target: Tensor, ignore_index: int, **_: Any) -> None:
        """The rows of a call over the head's classes whose target counts."""
        z = input.movedim(1, -1) if input.dim() > 1 else input
        if target.is_floating_point() or self.num_classes not in (None, z.shape[-1]):
            return
        kept = target != ignore_index
        self.seen.append((z[kept], target[kept]))


def on_device(model: PreTrainedModel, batch: Batch) -> Batch:
    """The batch where the model is."""
    return {key: value.to(model.device) if torch.is_tensor(value) else value for key, value in batch.items()}


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
    watch = _CrossEntropyWatch(None if head is None else len(head.weight))
    with dense_head(model), watch:
        model(**on_device(model, batch))
    if not watch.seen:
        raise ValueError(
            f"{type(model).__name__} computes no cross-entropy over its classes from these labels, so there is no "
            "distribution to compare"
        )
    logits, targets = (torch.cat(parts) for parts in zip(*watch.seen))
    return upcast(logits), targets
