"""The inputs of decoding, checked: head and special tokens of the model, sentences, texts, logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from ..config import MapConfig
from ..functional.arguments import check_text
from ..model.find import sparse_config, transformers_model


def head_map(model: PreTrainedModel) -> MapConfig:
    """The map of a sparse head.

    Raises:
        ValueError: the model is not sparse, or its head is dense.
    """
    map_config = sparse_config(model).head
    if map_config is None:
        raise ValueError("the model's head is dense: every token has nonzero probability; sparsify(model, head=...)")
    return map_config


def start_token(model: PreTrainedModel) -> int:
    """The first token of an encoder-decoder's output.

    Raises:
        ValueError: the generation config has none.
    """
    settings = model.generation_config
    start = settings.bos_token_id if settings.decoder_start_token_id is None else settings.decoder_start_token_id
    if start is None:
        raise ValueError(
            "model.generation_config.decoder_start_token_id is None: set it to the token the decoder starts with"
        )
    return start


def end_tokens(model: PreTrainedModel, given: int | list[int] | None = None) -> list[int]:
    """The tokens that end a string: those ``given`` for one call, or those of the generation config.

    Raises:
        ValueError: the generation config has none.
    """
    end = model.generation_config.eos_token_id if given is None else given
    if end is None:
        raise ValueError("model.generation_config.eos_token_id is None: no string ever ends; set it to the end token")
    return end if isinstance(end, list) else [end]


def check_generates(model: PreTrainedModel) -> None:
    """Refuse a model that does not decode.

    Raises:
        TypeError: not a Transformers model, or one of a class without ``generate``.
    """
    if getattr(model, "can_generate", bool)():
        return
    name = type(transformers_model(model)).__name__
    raise TypeError(f"{name} does not generate; give a model that does, as those that AutoModelForCausalLM loads")


def num_sentences(inputs: object) -> int:
    """The batch size of inputs for ``model.generate``.

    Args:
        inputs: (B, length) tensors by name.

    Raises:
        TypeError: not a mapping to tensors.
        ValueError: ids of one sentence without a batch dimension, or no sentence.
    """
    named = inputs if isinstance(inputs, Mapping) else {}
    parts = [value[0] if isinstance(value, ModelOutput) else value for value in named.values()]
    tensors = [value for value in parts if isinstance(value, Tensor)]
    lists = [name for name, value in named.items() if isinstance(value, list)]
    if not tensors or lists:
        was = f"{lists[0]} was a list" if lists else f"was {type(inputs).__name__}"
        raise TypeError(
            "inputs must be a mapping from names to (B, length) tensors, as "
            f'tokenizer(text, return_tensors="pt") gives; {was}'
        )
    ids = named.get("input_ids")
    if isinstance(ids, Tensor) and ids.dim() < 2:
        raise ValueError(
            f"input_ids must be (B, length), were of shape {tuple(ids.shape)}; of one sentence, give ids[None]"
        )
    if len(tensors[0]) == 0:
        raise ValueError("the batch is empty: give at least one sentence")
    return len(tensors[0])


def cuts_outputs(model: PreTrainedModel) -> bool:
    """Whether ``generate`` of a model cuts sequences and scores before it returns them, as Whisper's does."""
    return hasattr(model, "_postprocess_outputs")


def check_one_segment(model: PreTrainedModel, inputs: Mapping[str, object]) -> None:
    """Refuse speech that ``generate`` would decode in more than one segment.

    Raises:
        ValueError: more frames than the encoder reads at once.
    """
    features = inputs.get("input_features")
    if not cuts_outputs(model) or not isinstance(features, Tensor):
        return
    encoder = model.get_encoder()
    most = encoder.conv1.stride[0] * encoder.conv2.stride[0] * model.config.max_source_positions
    if features.shape[-1] > most:
        raise ValueError(
            f"{type(model).__name__} reads {most} frames of speech at once, was given {features.shape[-1]}; give one "
            "segment at a time"
        )


def check_padding(model: PreTrainedModel, inputs: Mapping[str, object]) -> None:
    """Refuse prompts where a decoder would go on from padding; an encoder reads padding on either side.

    Args:
        model: a model that generates.
        inputs: for ``generate``, or as it has prepared them, where it has worked out a mask that was not given.

    Raises:
        ValueError: a prompt is padded on the right.
    """
    mask = inputs.get("attention_mask")
    if model.config.is_encoder_decoder or not isinstance(mask, Tensor) or mask.dim() != 2:
        return
    if mask.shape[1] and not bool(mask[:, -1].all()):
        row = int((mask[:, -1] == 0).nonzero()[0])
        raise ValueError(
            f"prompts must be padded on the left, where {type(model).__name__} does not go on from padding, and row "
            f"{row} ends with padding; set tokenizer.padding_side = 'left'"
        )


def repeated(inputs: Mapping[str, Any], times: int) -> dict[str, Any]:
    """Inputs with every sentence ``times`` times in a row; outputs of an encoder are repeated too."""
    repeats: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, ModelOutput):
            repeats[name] = type(value)(**repeated(value, times))
        else:
            repeats[name] = value.repeat_interleave(times, dim=0) if isinstance(value, Tensor) else value
    return repeats


def check_one_sentence(inputs: object) -> None:
    """Refuse a batch of more or fewer than one sentence.

    Raises:
        TypeError: not a mapping to tensors.
        ValueError: another batch size than 1.
    """
    rows = num_sentences(inputs)
    if rows != 1:
        raise ValueError(f"inputs must be for one sentence, were for {rows}")


def check_logits(logits: Tensor) -> Tensor:
    """The logits themselves, if none is NaN.

    Raises:
        ValueError: a logit is NaN.
    """
    if logits.isnan().any():
        raise ValueError("the model's logits are NaN; look at its weights and inputs")
    return logits


def encode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prefix: str,
    source: str | Mapping[str, Tensor] | None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Tokenize the text that the model reads and the beginning of its output.

    Args:
        model: an encoder-decoder or a decoder.
        tokenizer: the model's.
        prefix: the prompt of a decoder, or the beginning of an encoder-decoder's output.
        source: the text an encoder-decoder reads, or its inputs by name; None for a decoder.

    Returns:
        Inputs (1, length) by name, and the ids (T,) of the output's beginning: empty for a decoder, whose prompt is
        an input.

    Raises:
        ValueError: an encoder-decoder without ``source``, or a decoder with one.
        TypeError: no tokenizer, a ``prefix`` that is no text, or a ``source`` that is neither text nor inputs.
    """
    if not callable(tokenizer):
        raise TypeError(f"tokenizer must be that of the model, was {tokenizer!r}")
    check_text("prefix", prefix)
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        if source is None:
            raise ValueError(f"{name} reads a source text: pass source=...")
        if not isinstance(source, str | Mapping):
            raise TypeError(f"source must be a text, or a mapping from names to tensors, was {source!r}")
        inputs = tokenizer(source, return_tensors="pt").to(model.device) if isinstance(source, str) else source
        ids = tokenizer(text_target=prefix, add_special_tokens=False).input_ids if prefix else []
        return dict(inputs), torch.tensor(ids, dtype=torch.long, device=model.device)
    if source is not None:
        raise ValueError(f"{name} has no encoder; put all of the text in prefix and pass source=None")
    ids = tokenizer(prefix).input_ids
    if ids and ids[-1] in end_tokens(model) and _is_appended(tokenizer, prefix, ids):
        ids = ids[:-1]
    prompt = torch.tensor([ids], dtype=torch.long, device=model.device)
    return {"input_ids": prompt}, prompt.new_empty(0)


def _is_appended(tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int]) -> bool:
    """Whether the tokenizer wrote the last of a text's ids after it, as some end every text.

    Otherwise the token is of the text, or the one that begins every text: GPT-2 and OPT begin with their end token.
    """
    own = tokenizer(text, add_special_tokens=False).input_ids
    return ids[-len(own) :] != own if own else ids != [tokenizer.bos_token_id]
