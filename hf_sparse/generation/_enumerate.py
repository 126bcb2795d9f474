"""All strings a sparse model gives nonzero probability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ..head import distribution
from ..patching import sparse_config


@dataclass(frozen=True)
class SupportSet:
    """The strings of nonzero probability for one input.

    Attributes:
        sequences: token ids of each finished string, without start token, with the end token; likeliest first.
        probabilities: their probabilities.
        complete: whether nothing of nonzero probability was left out. If not, the set is not finite within the
            budget, and ``mass`` says how much of the distribution was found.
    """

    sequences: list[list[int]]
    probabilities: list[float]
    complete: bool

    @property
    def mass(self) -> float:
        """Total probability found; 1 up to rounding where ``complete``."""
        return sum(self.probabilities)


@torch.no_grad()
def enumerate_support(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], max_hypotheses: int = 1000, max_new_tokens: int = 64
) -> SupportSet:
    """Every string to which ``model`` gives nonzero probability, level by level.

    Args:
        model: a model with a sparse head, in evaluation mode.
        inputs: what ``model.generate`` takes, for one sentence: (1, length) tensors.
        max_hypotheses: how many strings, finished and not, are kept; beyond it the least likely are dropped.
        max_new_tokens: the longest string looked at, in tokens.

    Returns:
        A ``SupportSet``.

    Raises:
        ValueError: a dense head, more than one sentence, no end token, or a budget below 1.

    Cost: one forward pass over all open strings for each length.
    """
    choice = sparse_config(model).head
    end = model.generation_config.eos_token_id
    batch = next(iter(inputs.values())).shape[0]
    if choice is None:
        raise ValueError("the model's head is dense: every string has nonzero probability; sparsify(model, head=...)")
    if batch != 1:
        raise ValueError(f"inputs must be for one sentence, were for {batch}")
    if end is None:
        raise ValueError("model.generation_config.eos_token_id is None: no string ever ends")
    if max_hypotheses < 1 or max_new_tokens < 1:
        raise ValueError(
            f"max_hypotheses and max_new_tokens must be at least 1, were {max_hypotheses} and {max_new_tokens}"
        )
    ends = torch.tensor(end if isinstance(end, list) else [end], device=model.device)
    step = _EncoderDecoderStep(model, inputs) if model.config.is_encoder_decoder else _DecoderStep(model, inputs)

    open_strings = torch.empty(1, 0, dtype=torch.long, device=model.device)
    open_mass = torch.ones(1, dtype=torch.float64, device=model.device)
    finished: list[tuple[float, list[int]]] = []
    complete = True
    for _ in range(max_new_tokens):
        next_mass = open_mass[:, None] * step(choice, open_strings).double()
        parent, token = next_mass.nonzero(as_tuple=True)
        open_strings = torch.cat([open_strings[parent], token[:, None]], dim=1)
        open_mass = next_mass[parent, token]
        ended = torch.isin(token, ends)
        finished += zip(open_mass[ended].tolist(), open_strings[ended].tolist())
        finished.sort(key=lambda entry: -entry[0])
        open_strings, open_mass = open_strings[~ended], open_mass[~ended]
        if len(finished) > max_hypotheses or len(open_mass) > max_hypotheses:
            complete = False
            finished = finished[:max_hypotheses]
            best = open_mass.topk(min(max_hypotheses, len(open_mass))).indices
            open_strings, open_mass = open_strings[best], open_mass[best]
        if len(open_mass) == 0:
            break
    complete = complete and len(open_mass) == 0
    return SupportSet([ids for _, ids in finished], [mass for mass, _ in finished], complete)


class _EncoderDecoderStep:
    """Next-token distributions after each of several target prefixes of one source sentence."""

    def __init__(self, model: Any, inputs: Mapping[str, Tensor]) -> None:
        self.model = model
        self.mask = inputs.get("attention_mask")
        self.encoded = model.get_encoder()(**inputs).last_hidden_state
        start = model.generation_config.decoder_start_token_id
        self.start = model.generation_config.bos_token_id if start is None else start

    def __call__(self, choice: Any, prefixes: Tensor) -> Tensor:
        rows = len(prefixes)
        start = prefixes.new_full((rows, 1), self.start)
        logits = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self.encoded.expand(rows, -1, -1)),
            attention_mask=None if self.mask is None else self.mask.expand(rows, -1),
            decoder_input_ids=torch.cat([start, prefixes], dim=1),
            use_cache=False,
        ).logits[:, -1]
        return distribution(choice, logits)


class _DecoderStep:
    """Next-token distributions after each of several continuations of one prompt."""

    def __init__(self, model: Any, inputs: Mapping[str, Tensor]) -> None:
        self.model = model
        self.prompt = inputs["input_ids"]
        self.mask = inputs.get("attention_mask")

    def __call__(self, choice: Any, prefixes: Tensor) -> Tensor:
        rows = len(prefixes)
        mask = None
        if self.mask is not None:
            mask = torch.cat([self.mask.expand(rows, -1), self.mask.new_ones(prefixes.shape)], dim=1)
        input_ids = torch.cat([self.prompt.expand(rows, -1), prefixes], dim=1)
        logits = self.model(input_ids=input_ids, attention_mask=mask, use_cache=False).logits[:, -1]
        return distribution(choice, logits)
