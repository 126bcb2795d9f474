"""The attention weights of one forward pass, with the tokens they stand between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..generation.forced import beginning, forced_output
from ..generation.labels import token_labels


@dataclass(frozen=True)
class AttentionMap:
    """Weights (queries, keys) of the last layer, averaged over heads."""

    name: str
    weights: Tensor
    keys: list[str]
    queries: list[str]


def attention_maps(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], tokens: Sequence[int], tokenizer: Any
) -> list[AttentionMap]:
    """All kinds of attention that the model returns while ``tokens`` are forced upon it.

    A row of the decoder is named after the token that is being written there, a row of the encoder after its own.
    """
    begin = beginning(model, inputs, 1)
    sequence = torch.cat([begin, torch.tensor([list(tokens)], device=begin.device)], dim=1)
    output, _, _ = forced_output(model, inputs, sequence, output_attentions=True)
    read = token_labels(inputs["input_ids"][0].tolist(), tokenizer)
    decoded = token_labels(sequence[0].tolist(), tokenizer)
    kinds = {
        "cross_attentions": ("Cross-attention: from the text being written to the text read", decoded[1:], read),
        "encoder_attentions": ("Attention of the encoder within the text read", read, read),
        "decoder_attentions": ("Attention of the decoder within the text written so far", decoded[1:], decoded[:-1]),
        "attentions": ("Attention within the text", decoded[1:], decoded[:-1]),
    }
    maps = []
    for kind, (name, queries, keys) in kinds.items():
        layers = output.get(kind)
        if layers and layers[-1] is not None:
            weights = layers[-1][0].mean(0)[: len(queries), : len(keys)]
            maps.append(AttentionMap(name, weights, keys, queries))
    return maps
