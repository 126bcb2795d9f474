"""A student of some of a pretrained teacher's layers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

LISTED = ("layer_types", "no_rope_layers")  # entries of a configuration with one value for each layer


def spaced(layers: int, count: int) -> list[int]:
    """``count`` of so many layers, evenly spaced, the first and the last among them.

    >>> spaced(30, 4)
    [0, 10, 19, 29]
    """
    return [round(place) for place in torch.linspace(0, layers - 1, count).tolist()]


def shallow(teacher: PreTrainedModel, count: int) -> PreTrainedModel:
    """A student with the weights of a pretrained teacher, but only some of its layers (Sanh et al. 2019).

    Args:
        teacher: with a list of layers that are all alike.
        count: of the layers that the student keeps.

    Raises:
        ValueError: the teacher has fewer, or no list of layers.
    """
    layers = teacher.config.num_hidden_layers
    if count > layers:
        raise ValueError(f"layers must be at most {layers}, those of the teacher, was {count}")
    lists = [name for name, part in teacher.named_modules() if isinstance(part, nn.ModuleList) and len(part) == layers]
    if not lists:
        raise ValueError(f"{type(teacher).__name__} has no list of {layers} layers to choose from")
    kept, config = spaced(layers, count), copy.deepcopy(teacher.config)
    config.num_hidden_layers = count
    for name in LISTED:
        if values := getattr(config, name, None):
            setattr(config, name, [values[place] for place in kept])
    weights: dict[str, Any] = {}
    for name, weight in teacher.state_dict().items():
        prefix = f"{lists[0]}."
        if name.startswith(prefix):
            place, rest = name.removeprefix(prefix).split(".", 1)
            if int(place) not in kept:
                continue
            name = f"{prefix}{kept.index(int(place))}.{rest}"
        weights[name] = weight
    student = type(teacher)(config)
    student.load_state_dict(weights)
    return student
