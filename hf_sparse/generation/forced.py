"""Forced decoding: run a model over given strings, and list the alternatives at every step."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from ..functional.arguments import check_tensor
from ..model.distribution import distribution
from ..model.state import is_sparse, raw_scores
from .inputs import (
    check_logits,
    check_one_segment,
    check_one_sentence,
    cuts_outputs,
    head_map,
    num_sentences,
    repeated,
    start_token,
)
from .inside_generate import inside_generate


@dataclass(frozen=True)
class StepSupport:
    """The choices of a sparse model at one step of a given string.

    Attributes:
        chosen: the token of the string; it need not be among ``tokens``.
        tokens: the tokens of nonzero probability, likeliest first.
        probabilities: of ``tokens``, in the same order; their sum is one.
    """

    chosen: int
    tokens: list[int]
    probabilities: list[float]

    @property
    def forced(self) -> bool:
        """Whether the token of the string is the only one possible."""
        return self.tokens == [self.chosen]


@torch.no_grad()
def step_supports(model: PreTrainedModel, inputs: Mapping[str, Tensor], tokens: Sequence[int]) -> list[StepSupport]:
    """The tokens of nonzero probability at every step of a given string.

    Args:
        model: a model with a sparse head, or an ensemble, in evaluation mode.
        inputs: keyword inputs of ``model.generate`` for one sentence, (1, length) tensors.
        tokens: the string, without start token and prompt, as in ``SupportSet.sequences``.

    Returns:
        One ``StepSupport`` per token.

    Raises:
        TypeError: ``inputs`` is not a mapping to tensors.
        ValueError: a dense head, more than one sentence, no tokens, or NaN in the logits.

    Source: Peters et al. 2019, Figure 2.
    Cost: one forward pass.
    """
    map_config = head_map(model)
    check_one_sentence(inputs)
    _check_string(tokens, model.config.get_text_config(decoder=True).vocab_size)
    start = beginning(model, inputs, 1)
    string = torch.tensor([list(tokens)], dtype=torch.long, device=start.device)
    _, _, logits = forced_output(model, inputs, torch.cat([start, string], dim=1))
    steps = []
    for token, p in zip(tokens, distribution(map_config, logits)[0].double()):
        order = p.argsort(descending=True, stable=True)[: int((p > 0).sum())]
        steps.append(StepSupport(int(token), order.tolist(), p[order].tolist()))
    return steps


def _check_string(tokens: Sequence[int], vocab_size: int) -> None:
    if not isinstance(tokens, Iterable) or not all(isinstance(token, Integral) for token in tokens):
        raise TypeError(f"tokens must be whole numbers, the ids of a string, was {tokens!r}")
    if len(tokens) == 0:
        raise ValueError("tokens must hold at least one more token than the beginning")
    outside = [token for token in tokens if not 0 <= token < vocab_size]
    if outside:
        raise ValueError(f"tokens must be ids in [0, {vocab_size}), was {outside[0]}")


def forced_output(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], sequences: Tensor, **options: object
) -> tuple[ModelOutput, Tensor, Tensor]:
    """Run a model once over whole sequences.

    Args:
        model: a model with ``generate``.
        inputs: keyword inputs of ``model.generate``, (B, T) tensors; decoder-only prompts padded on the left.
        sequences: token ids (k B, L) as ``model.generate`` returns them, with the start token or the prompt. Rows
            k b to k b + k - 1 belong to input b.
        **options: for the forward pass.

    Returns:
        The model's output; the scored tokens (k B, S), those after the start token or the prompt; and the raw
        scores (k B, S, V) that predict them.

    Raises:
        TypeError: ``inputs`` is not a mapping to tensors.
        ValueError: the number of sequences is not a multiple of the number of inputs, a sequence does not begin with
            the start token or the prompt, no token is left to score, or a logit is NaN.
    """
    call, length = forced_call(model, inputs, sequences)
    output = run_forced(model, call, **options)
    return output, sequences[:, length:], check_logits(output.logits[:, length - 1 : -1])


def forced_call(model: PreTrainedModel, inputs: Mapping[str, Tensor], sequences: Tensor) -> tuple[dict[str, Any], int]:
    """The keyword arguments of the forward pass over whole sequences, and the length of what is not scored.

    Arguments and errors are those of ``forced_output``.
    """
    rows = num_sentences(inputs)
    check_tensor("sequences", sequences)
    if len(sequences) == 0 or len(sequences) % rows:
        raise ValueError(f"sequences must be a multiple of the {rows} inputs, were {len(sequences)}")
    rows_of_inputs = repeated(inputs, len(sequences) // rows)
    start = beginning(model, rows_of_inputs, len(sequences), sequences)
    length = start.shape[1]
    if sequences.shape[1] <= length or not torch.equal(sequences[:, :length], start):
        raise ValueError(
            f"sequences must be {_expected(model, start)} and at least one more token, as generate returns them"
        )
    return _forced_inputs(model, rows_of_inputs, sequences), length


def run_forced(model: PreTrainedModel, call: Mapping[str, Any], **options: object) -> ModelOutput:
    """The output of ``model(**call)`` with raw scores in its logits."""
    with raw_scores(model) if is_sparse(model) else nullcontext():
        return model(**call, **options)


def beginning(model: PreTrainedModel, inputs: Mapping[str, Any], rows: int, sequences: Tensor | None = None) -> Tensor:
    """The beginning (rows, T) of the sequences that ``generate`` returns: start tokens, or the prompts.

    For an encoder-decoder it is ``decoder_input_ids`` where ``inputs`` have them. For Whisper it is the prompt that
    the sequences begin with, or else the one that its own ``generate`` writes, with the language it detects.
    """
    if not model.config.is_encoder_decoder:
        return inputs["input_ids"]
    given = inputs.get("decoder_input_ids")
    if given is not None:
        return given
    if cuts_outputs(model):
        check_one_segment(model, inputs)
        kept = None if sequences is None else _kept_prompts(model, sequences)
        if kept is not None:
            return kept
        prompts: Tensor = inside_generate(model, inputs, _prompts)
        return prompts
    return torch.full((rows, 1), start_token(model), device=model.device)


def _kept_prompts(model: PreTrainedModel, sequences: Tensor) -> Tensor | None:
    """The prompts of Whisper (rows, T) that sequences begin with: start, language, task, no times.

    None where a row has none, or where they differ in length.
    """
    config = model.generation_config
    languages, tasks = (getattr(config, name, None) or {} for name in ("lang_to_id", "task_to_id"))
    special = [*languages.values(), *tasks.values(), getattr(config, "no_timestamps_token_id", -1)]
    follow = torch.isin(sequences[:, 1:], torch.tensor(special, device=sequences.device)).long().cumprod(-1).sum(-1)
    is_prompt = (sequences[:, 0] == start_token(model)) & (follow > 0) & (follow == follow[0])
    return sequences[:, : 1 + int(follow[0])] if bool(is_prompt.all()) else None


def _prompts(model: PreTrainedModel, input_ids: Tensor, **model_kwargs: object) -> Tensor:
    return input_ids


def _expected(model: PreTrainedModel, start: Tensor) -> str:
    if not model.config.is_encoder_decoder:
        return "the prompt"
    if start.shape[1] == 1:
        return "the decoder's start token"
    return (
        f"the decoder's prompt {start[0].tolist()} (give another as inputs['decoder_input_ids'], and generate with "
        "return_dict_in_generate=True, which keeps it)"
    )


def _forced_inputs(model: PreTrainedModel, inputs: dict[str, Any], sequences: Tensor) -> dict[str, Any]:
    if model.config.is_encoder_decoder:
        return {**inputs, "decoder_input_ids": sequences}
    prompt = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones_like(prompt))
    mask = torch.cat([mask, mask.new_ones(len(sequences), sequences.shape[1] - prompt.shape[1])], dim=1)
    forced = {"input_ids": sequences, "attention_mask": mask}
    if "position_ids" in inspect.signature(model.forward).parameters:
        forced["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
    return forced
