"""Predicted fertilities: a token classifier whose classes are fertilities, and the rows to train it on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForTokenClassification, PreTrainedModel

from ..functional.arguments import check_count, check_number
from .counts import check_counts

if TYPE_CHECKING:
    from datasets import Dataset

Row: TypeAlias = "dict[str, Any]"
Batch: TypeAlias = "MutableMapping[str, Tensor]"


def fertility_dataset(
    input_ids: Sequence[Sequence[int]], counts: Sequence[Sequence[int]], max_fertility: int
) -> Dataset:
    """Rows to train a token classifier on with ``Trainer`` and ``DataCollatorForTokenClassification``.

    Args:
        input_ids: source sentences as token ids.
        counts: fertilities of the same tokens; see ``hf_sparse.fertility.fertility_counts``.
        max_fertility: the largest class; larger counts are clipped to it. The classifier needs one label more.

    Returns:
        Columns ``input_ids``, ``attention_mask`` and ``labels``.

    Raises:
        ValueError: ids and counts that do not pair up, or ``max_fertility`` below 1.
    """
    check_count("max_fertility", max_fertility)
    check_counts(input_ids, counts)
    from datasets import Dataset

    return Dataset.from_list(
        [
            {"input_ids": list(ids), "attention_mask": [1] * len(ids), "labels": [min(c, max_fertility) for c in row]}
            for ids, row in zip(input_ids, counts)
        ]
    )


class FertilityCollator:
    """A data collator that pads the column ``fertility`` of training rows and leaves the rest to another collator.

    Args:
        collator: makes a batch of the other columns, with an ``attention_mask``, such as ``DataCollatorForSeq2Seq``.
    """

    def __init__(self, collator: Callable[[list[Row]], Batch]) -> None:
        if not callable(collator):
            raise TypeError(f"collator must make a batch of rows, as DataCollatorForSeq2Seq, was {collator!r}")
        self.collator = collator

    def __call__(self, features: list[Row]) -> Batch:
        """Make a batch; rows without the column, as at test time, give a batch without it.

        Returns:
            The batch of the other collator, with ``fertility`` (batch, source) in float32, 0 at padding.

        Raises:
            ValueError: only some rows have the column, a row has not one bound per token, or there is no attention
                mask to tell padding by.
        """
        given = [row["fertility"] for row in features if "fertility" in row]
        bounds = [torch.as_tensor(each, dtype=torch.float32, device="cpu") for each in given]
        batch = self.collator([{key: row[key] for key in row if key != "fertility"} for row in features])
        if not bounds:
            return batch
        mask = batch.get("attention_mask")
        if mask is None:
            raise ValueError("the collator makes no attention_mask, which tells where fertilities are to be padded")
        sizes, lengths = [len(row) for row in bounds], mask.sum(1).tolist()
        if sizes != lengths:
            raise ValueError(f"every row must have a fertility for each token, {lengths}, had {sizes}")
        batch["fertility"] = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device).masked_scatter(
            mask.bool(), torch.cat(bounds).to(mask.device)
        )
        return batch


class FertilityPredictor(nn.Module):
    """Bounds predicted from the sentence: the expected fertility of each token, plus a constant.

    ``f_j = constant + sum_k k p(k | j, sentence)``. The constant turns expected counts into bounds, and makes up for
    words that the aligner missed.

    Args:
        model: any token classification model whose label ``k`` stands for fertility ``k``, trained on
            ``fertility_dataset`` with ``Trainer``; it reads the token ids of the model whose attention is bounded.
        constant: added to the expectation, at least 0; None is the constant saved with the model, or 1.

    Raises:
        TypeError: not a token classification model.
        ValueError: a constant below 0, or not finite.

    Source: Malaviya et al. 2018, Section 4, "predicted" (there a bidirectional LSTM).
    """

    def __init__(self, model: PreTrainedModel, constant: float | None = None) -> None:
        super().__init__()
        if not type(model).__name__.endswith("ForTokenClassification"):
            raise TypeError(f"model must be a token classification model, was {type(model).__name__}")
        constant = getattr(model.config, "fertility_constant", 1.0) if constant is None else constant
        check_number("constant", constant, "a finite number >= 0", lambda number: 0 <= number < math.inf)
        model.config.fertility_constant = float(constant)
        self.model = model

    @property
    def constant(self) -> float:
        """Number added to the expectation."""
        return self.model.config.fertility_constant

    @torch.no_grad()
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Bounds for a batch.

        Args:
            input_ids: (batch, source) token ids.
            attention_mask: (batch, source), 0 at padding; None for no padding.

        Returns:
            (batch, source) float32 bounds in target tokens, 0 at padding.
        """
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        self.model.eval()
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        classes = torch.arange(logits.shape[-1], dtype=torch.float32, device=logits.device)
        return (logits.float().softmax(-1) @ classes + self.constant) * attention_mask

    def record(self) -> dict[str, object]:
        """Plain data from which ``from_record`` builds it again, without its weights."""
        config = self.model.config.to_dict()
        return {"config": {key: value for key, value in config.items() if key != "dtype"}}

    @classmethod
    def from_record(cls, config: Mapping[str, object]) -> FertilityPredictor:
        """Build it from ``record``, with weights still to be loaded."""
        return cls(AutoModelForTokenClassification.from_config(AutoConfig.for_model(**config)))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the classifier and the constant into ``folder``, which must not be the folder of another model."""
        self.model.save_pretrained(folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path, constant: float | None = None) -> FertilityPredictor:
        """Read a saved predictor, or any token classification model; ``constant`` as in the constructor."""
        return cls(AutoModelForTokenClassification.from_pretrained(folder), constant)
