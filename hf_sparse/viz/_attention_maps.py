"""The attention weights of one forward pass, labelled with tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..generation.forced import beginning, forced_output
from ..generation.labels import token_labels


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights of the last layer, averaged over heads.

    Attributes:
        name: the kind of attention, as a caption.
        weights: (queries, keys).
        keys: labels of the columns.
        queries: labels of the rows: in a decoder the token being written, in an encoder the token itself.
    """

    name: str
    weights: Tensor
    keys: list[str]
    queries: list[str]


def attention_maps(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> list[AttentionMap]:
    """Every kind of attention that the model returns while ``tokens`` are forced.

    Args:
        model: a model with ``generate``, in evaluation mode.
        inputs: keyword inputs of ``model.generate`` for one sentence, (1, length) tensors.
        tokens: the string, without start token and prompt.
        tokenizer: the model's.
    """
    start = beginning(model, inputs, 1)
    sequence = torch.cat([start, torch.tensor([list(tokens)], device=start.device)], dim=1)
    output, _, _ = forced_output(model, inputs, sequence, output_attentions=True)
    read = token_labels(inputs["input_ids"][0].tolist(), tokenizer)
    decoded = token_labels(sequence[0].tolist(), tokenizer)
    written, before = decoded[1:], decoded[:-1]
    kinds = {
        "cross_attentions": ("Cross-attention: from the text being written to the text read", written, read),
        "encoder_attentions": ("Attention of the encoder within the text read", read, read),
        "decoder_attentions": ("Attention of the decoder within the text written so far", written, before),
        "attentions": ("Attention within the text", written, before),
    }
    maps = []
    for kind, (name, queries, keys) in kinds.items():
        layers = output.get(kind)
        if layers and layers[-1] is not None:
            weights = layers[-1][0].mean(0)[: len(queries), : len(keys)]
            maps.append(AttentionMap(name, weights, keys, queries))
    return maps
