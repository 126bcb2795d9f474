"""Images and sounds in the place of tokens, for models of text and more."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.sweep.deliveries import Arguments, argument_sets, number

IMAGE_TOKEN = ("image_token_id", "image_token_index", "image_patch_id")
FEATURES = {"get_image_features": IMAGE_TOKEN, "get_audio_features": ("audio_token_id", "audio_token_index")}


@torch.no_grad()
def with_senses(model: PreTrainedModel, inputs: Arguments) -> Arguments:
    """``inputs``, with images or sounds in the place of tokens where arguments are found that the model takes."""
    base = getattr(model, "model", model)
    for method, names in FEATURES.items():
        features = getattr(base, method, None) or getattr(model, method, None)
        token = number(model.config, *names, default=None)
        if features is None or token is None or (inputs["input_ids"] == token).any():
            continue
        for given in argument_sets(features, model.config):
            try:
                filled = _filled(model, inputs, token, num_vectors(features(**given)), given)
                model(**filled)
            except Exception:  # noqa: BLE001
                continue
            inputs = filled
            break
    return inputs


def num_vectors(features: Any) -> int:
    """How many vectors a method that computes features returned, in whatever it returned them."""
    if not isinstance(features, Tensor | list | tuple):
        features = features.last_hidden_state if features.pooler_output is None else features.pooler_output
    if isinstance(features, Tensor):
        return features.flatten(0, -2).shape[0]
    return sum(num_vectors(part) for part in features)


def _filled(model: PreTrainedModel, inputs: Arguments, token: int, vectors: int, given: Arguments) -> Arguments:
    ids = inputs["input_ids"]
    places = torch.full((len(ids), max(vectors // 2, 1)), token)  # of two images or sounds, in as many rows or in one
    between = [places, ids[:, 1:2]] * (2 // len(ids))
    ids = torch.cat([ids[:, :1], *between, ids[:, 2:]], dim=1)
    filled = {**inputs, **given, "input_ids": ids}
    if "mm_token_type_ids" in inspect.signature(type(model).forward).parameters:
        filled["mm_token_type_ids"] = (ids == number(model.config, *IMAGE_TOKEN, default=-1)).long()
    return filled
