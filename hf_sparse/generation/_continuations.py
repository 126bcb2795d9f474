"""Next-token distributions after several continuations of one input, extended a token at a time with a cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ..config import MapConfig
from ..fertility.source import source_bounds
from ..model.distribution import distribution
from ..model.state import sparse_config


def head_map(model: PreTrainedModel) -> MapConfig:
    """The map of a sparse head.

    Raises:
        ValueError: the model is not sparse, or its head is dense.
    """
    map_config = sparse_config(model).head
    if map_config is None:
        raise ValueError("the model's head is dense: every token has nonzero probability; sparsify(model, head=...)")
    return map_config


def start_token(model: Any) -> int:
    """What an encoder-decoder's decoder starts with.

    Raises:
        ValueError: the model does not say.
    """
    settings = model.generation_config
    start = settings.bos_token_id if settings.decoder_start_token_id is None else settings.decoder_start_token_id
    if start is None:
        raise ValueError("model.generation_config.decoder_start_token_id is None: what does the decoder start with?")
    return start


def end_tokens(model: Any) -> list[int]:
    """The tokens that end a string.

    Raises:
        ValueError: there are none.
    """
    end = model.generation_config.eos_token_id
    if end is None:
        raise ValueError("model.generation_config.eos_token_id is None: no string ever ends")
    return end if isinstance(end, list) else [end]


def check_logits(logits: Tensor) -> Tensor:
    """``logits``, which must not hold NaN.

    Raises:
        ValueError: they do.
    """
    if logits.isnan().any():
        raise ValueError("the model's logits are NaN; look at its weights and inputs")
    return logits


class Continuations:
    """Continuations of one input, all of one length; at first there is one, of length zero.

    Args:
        model: a model with a sparse head, in evaluation mode.
        inputs: what ``model.generate`` takes, for one sentence.
        prefix: token ids (T,) that every continuation begins with.

    Attributes:
        probabilities: the next-token distribution after each continuation, (rows, V).
    """

    @torch.no_grad()
    def __init__(self, model: Any, inputs: Mapping[str, Tensor], prefix: Tensor) -> None:
        self.model = model
        self.map_config = head_map(model)
        rows = {len(value) for value in inputs.values()}
        if rows != {1}:
            raise ValueError(f"inputs must be for one sentence, (1, length) tensors, were for {sorted(rows)}")
        if model.config.is_encoder_decoder:
            self.encoded = model.get_encoder()(**inputs).last_hidden_state
            self.mask = inputs.get("attention_mask")
            self.fertility = source_bounds(model, inputs.get("input_ids"), self.mask)
            tokens = torch.cat([prefix.new_full((1,), start_token(model)), prefix])
        else:
            prompt, mask = inputs["input_ids"][0], inputs.get("attention_mask")
            # With padding taken out no mask and no positions need to be kept.
            tokens = torch.cat([prompt if mask is None else prompt[mask[0].bool()], prefix])
            if len(tokens) == 0:
                raise ValueError(
                    "the prompt and the prefix are empty; a decoder needs at least one token to start from"
                )
        self.cache: Any = None
        self.probabilities = self._step(tokens[None])

    def extend(self, parents: Tensor, tokens: Tensor) -> None:
        """Go on with ``tokens[i]`` after the continuation ``parents[i]``, for every i."""
        self.cache.reorder_cache(parents)
        self.probabilities = self._step(tokens[:, None])

    @torch.no_grad()
    def _step(self, tokens: Tensor) -> Tensor:
        inputs: dict[str, Any] = {"past_key_values": self.cache, "use_cache": True}
        if self.model.config.is_encoder_decoder:
            rows = len(tokens)
            inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=self.encoded.expand(rows, -1, -1))
            inputs["attention_mask"] = None if self.mask is None else self.mask.expand(rows, -1)
            inputs["decoder_input_ids"] = tokens
            if self.fertility is not None:
                inputs["fertility"] = self.fertility.expand(rows, -1)
        else:
            inputs["input_ids"] = tokens
        output = self.model(**inputs)
        self.cache = output.past_key_values
        return distribution(self.map_config, check_logits(output.logits[:, -1]))
