"""The weight of a head: how many classes it has, and whether its numbers can be read."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

HEAD_WITHOUT_ROWS = (
    "the head is a {}, which has no weight whose rows are the classes; give the model a linear layer for its head, or "
    "pass head=None"
)

_READABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Tensors of torch whose entries are numbers, by the name of their class: DTensor is of an optional module.
_PLAIN = ("Tensor", "Parameter", "DTensor", "FakeTensor")


def num_classes(head: nn.Module) -> int:
    """The number of classes of a head: the rows of its weight, unless these are packed codes.

    Raises:
        NotImplementedError: a head without weights whose rows are the classes.
    """
    weight: Any = getattr(head, "weight", None)
    if weight is None:
        raise NotImplementedError(HEAD_WITHOUT_ROWS.format(type(head).__name__))
    # bitsandbytes packs codes of four bits into one column; torch's own quantized layers have a method for a weight.
    if torch.is_tensor(weight) and weight.is_floating_point():
        return len(weight)
    return int(cast(Any, head).out_features)


def has_rows(head: nn.Module | None) -> bool:
    """Whether a model has one head with a weight; MusicGen has a list of heads, one for each codebook."""
    return getattr(head, "weight", None) is not None


def is_quantized(head: nn.Module) -> bool:
    """Whether a head keeps codes in the place of its weight, which only its own forward turns into numbers."""
    weight: Any = getattr(head, "weight", None)
    return weight is not None and is_coded(weight)


def is_coded(weight: Any) -> bool:
    """Whether the weight of a layer is no tensor of numbers that can be read row by row."""
    return not (torch.is_tensor(weight) and weight.dtype in _READABLE and type(weight).__name__ in _PLAIN)
