"""What a model computes while given strings are forced upon it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ._continuations import check_logits, start_token
from ._inputs import num_sentences


def forced_output(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], sequences: Tensor, **options: Any
) -> tuple[Any, Tensor, Tensor]:
    """One forward pass over whole sequences.

    Args:
        model: a model that ``generate`` works for.
        inputs: what ``model.generate`` takes, (B, T) tensors; decoder-only prompts padded on the left.
        sequences: token ids (k B, L) as ``model.generate`` returns them, with the start token or the prompt. Rows
            k b to k b + k - 1 belong to input b.
        **options: for the forward pass.

    Returns:
        The model's output; the scored tokens (k B, S), those after the start token or the prompt; and the logits
        (k B, S, V) from which each was chosen.

    Raises:
        TypeError: inputs that are no mapping to tensors.
        ValueError: a number of sequences that does not fit the inputs, sequences that do not begin as those of
            ``generate``, no token to score, NaN in the logits.
    """
    rows = num_sentences(inputs)
    if len(sequences) == 0 or len(sequences) % rows:
        raise ValueError(f"sequences must be a multiple of the {rows} inputs, were {len(sequences)}")
    repeated = {name: value.repeat_interleave(len(sequences) // rows, dim=0) for name, value in inputs.items()}
    begin = beginning(model, repeated, len(sequences))
    length = begin.shape[1]
    if sequences.shape[1] <= length or not torch.equal(sequences[:, :length], begin):
        what = "the decoder's start token" if model.config.is_encoder_decoder else "the prompt"
        raise ValueError(f"sequences must be {what} and at least one more token, as generate returns them")
    output = model(**_forced(model, repeated, sequences), **options)
    return output, sequences[:, length:], check_logits(output.logits[:, length - 1 : -1])


def beginning(model: PreTrainedModel, inputs: Mapping[str, Tensor], rows: int) -> Tensor:
    """What sequences of ``generate`` begin with: the decoder's start token, or the prompts."""
    if model.config.is_encoder_decoder:
        return torch.full((rows, 1), start_token(model), device=model.device)
    return inputs["input_ids"]


def _forced(model: Any, inputs: dict[str, Tensor], sequences: Tensor) -> dict[str, Tensor]:
    if model.config.is_encoder_decoder:
        return {**inputs, "decoder_input_ids": sequences}
    prompt = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones_like(prompt))
    mask = torch.cat([mask, mask.new_ones(len(sequences), sequences.shape[1] - prompt.shape[1])], dim=1)
    forced = {"input_ids": sequences, "attention_mask": mask}
    if "position_ids" in inspect.signature(model.forward).parameters:
        forced["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
    return forced
