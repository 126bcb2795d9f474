"""The attention weights of one forward pass, labelled with tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..attention import attention_sites
from ..attention.site import KIND_OF_OUTPUT
from ..generation.forced import beginning, forced_output
from ..generation.labels import token_labels


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights of the last sparse layer, averaged over heads.

    Attributes:
        name: the kind of attention, as a caption.
        weights: (queries, keys); of another shape where keys are not the tokens, but those of a prefix too, or of a
            window.
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
    """Every kind of sparse attention whose weights the model returns while ``tokens`` are forced.

    Args:
        model: a model with ``generate``.
        inputs: keyword inputs of ``model.generate`` for one sentence, (1, length) tensors.
        tokens: the string, without start token and prompt.
        tokenizer: the model's.
    """
    start = beginning(model, inputs, 1)
    sequence = torch.cat([start, torch.tensor([list(tokens)], device=start.device)], dim=1)
    output, _, _ = forced_output(model, inputs, sequence, output_attentions=True)
    read = token_labels(inputs["input_ids"][0].tolist(), tokenizer)
    decoded = token_labels(sequence[0].tolist(), tokenizer)
    outputs = {
        "cross_attentions": ("Cross-attention: from the text being written to the text read", decoded, read),
        "encoder_attentions": ("Attention of the encoder within the text read", read, read),
        "decoder_attentions": ("Attention of the decoder within the text written so far", decoded, decoded),
        "attentions": ("Attention within the text", decoded, decoded),
    }
    maps = []
    for field, (name, queries, keys) in outputs.items():
        layer = _last_sparse(model, KIND_OF_OUTPUT[field], output.get(field) or ())
        if layer is None:
            continue
        weights = layer[0].mean(0)
        fits = tuple(weights.shape) == (len(queries), len(keys))
        if queries is decoded:  # a row is the token that its query writes; the last writes none
            queries = queries[1:]
        if keys is decoded:
            keys = keys[:-1]
        maps.append(AttentionMap(name, weights[: len(queries), : len(keys)] if fits else weights, keys, queries))
    return maps


def _last_sparse(model: PreTrainedModel, kind: str, layers: Sequence[Tensor | None]) -> Tensor | None:
    """The weights of the last of ``layers`` whose map is sparse, if it returned any."""
    sparse = [site.map_config is not None for _, site in attention_sites(model) if site.kind == kind]
    if len(set(sparse)) == 1:  # layers may share a site
        sparse = sparse[:1] * len(layers)
    return next((layer for layer, own in zip(reversed(layers), reversed(sparse)) if own and layer is not None), None)
