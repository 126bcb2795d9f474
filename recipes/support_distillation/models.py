"""Teacher and student: small ones made here, or a pretrained teacher and a student of some of its layers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerBase, set_seed

LISTED = ("layer_types", "no_rope_layers")  # entries of a configuration with one value for each layer


def fresh(tokenizer: PreTrainedTokenizerBase, width: int, layers: int, context: int, seed: int) -> GPT2LMHeadModel:
    """A dense model; the same seed gives the same weights.

    Args:
        tokenizer: the model has its tokens.
        width: of its states.
        layers: how many it has.
        context: most tokens of a row.
        seed: of its weights.
    """
    set_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=width,
        n_layer=layers,
        n_head=4,
        n_positions=context,
        initializer_range=0.06,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return GPT2LMHeadModel(config)


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
