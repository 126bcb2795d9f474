"""Forced decoding: run a model over given strings, and list the alternatives at every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from ..cache_name import CACHE, OLD_NAME
from ..functional.arguments import check_tensor
from ..model.distribution import distribution
from ..model.dry_run import quiet_evaluation
from ..model.find import is_sparse, prompt_adapter, transformers_model
from ..model.readings import raw_scores
from .inputs import (
    check_generates,
    check_logits,
    check_one_segment,
    check_one_sentence,
    check_padding,
    cuts_outputs,
    head_map,
    num_sentences,
    repeated,
    start_token,
)
from .inside_generate import inside_generate

_STEP_BY_STEP = (
    "so that one pass does not score a string; generate and exact_search, which go step by step, give scores"
)


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
        model: a model with a sparse head, or an ensemble; it runs in evaluation mode.
        inputs: keyword inputs of ``model.generate`` for one sentence, (1, length) tensors, images and the like.
        tokens: the string, without start token and prompt, as in ``SupportSet.sequences``.

    Returns:
        One ``StepSupport`` per token.

    Raises:
        TypeError: ``inputs`` is not a mapping to tensors, or ``tokens`` is no list of ids.
        ValueError: a dense head, more than one sentence, no tokens, inputs that ``score_sequences`` refuses, or NaN in
            the logits.

    Source: Peters et al. 2019, Figure 2.
    Cost: one forward pass; for a decoder that may let a prompt see what follows it (images, types of tokens) a second.
    """
    map_config = head_map(model)
    check_one_sentence(inputs)
    if isinstance(tokens, Tensor):
        raise TypeError(
            f"tokens must be a list of ids, was a tensor of shape {tuple(tokens.shape)}; of a row that generate "
            "returns give what follows the prompt or the start token, as row[length:].tolist()"
        )
    _check_string("tokens", tokens, model)
    start = beginning(model, inputs, 1)
    string = torch.tensor([list(tokens)], dtype=torch.long, device=start.device)
    _, _, logits = forced_output(model, inputs, torch.cat([start, string], dim=1))
    steps = []
    for token, p in zip(tokens, distribution(map_config, logits)[0].double()):
        order = p.argsort(descending=True, stable=True)[: int((p > 0).sum())]
        steps.append(StepSupport(int(token), order.tolist(), p[order].tolist()))
    return steps


def _check_string(name: str, tokens: Sequence[int], model: PreTrainedModel) -> None:
    if not isinstance(tokens, Iterable) or not all(isinstance(token, Integral) for token in tokens):
        raise TypeError(f"{name} must be whole numbers, the ids of a string, was {tokens!r}")
    if len(tokens) == 0:
        raise ValueError(f"{name} must hold at least one more token than the beginning")
    config = model.config.get_text_config(decoder=True)
    vocab_size = getattr(model.get_output_embeddings(), "out_features", config.vocab_size)
    outside = [token for token in tokens if not 0 <= token < vocab_size]
    if outside:
        raise ValueError(f"{name} must be ids in [0, {vocab_size}), was {outside[0]}")


def forced_output(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    sequences: Tensor,
    special_tokens: Mapping[str, Any] | None = None,
    **options: object,
) -> tuple[ModelOutput, Tensor, Tensor]:
    """Run a model once over whole sequences.

    Args:
        model: a model with ``generate``.
        inputs: keyword inputs of ``model.generate``, (B, T) tensors; decoder-only prompts padded on the left.
        sequences: token ids (k B, L) as ``model.generate`` returns them, with the start token or the prompt. Rows
            k b to k b + k - 1 belong to input b.
        special_tokens: ``eos_token_id`` and ``pad_token_id`` where ``generate`` was given others than those of the
            generation config: a decoder's ``attention_mask`` is inferred from them where ``inputs`` have none.
        **options: for the forward pass.

    Returns:
        The model's output; the scored tokens (k B, S), those after the start token or the prompt; and the raw
        scores (k B, S, V) that predict them.

    Raises:
        TypeError: ``inputs`` is not a mapping to tensors, or ``sequences`` are not whole numbers.
        ValueError: the number of sequences is not a multiple of the number of inputs, a sequence does not begin with
            the start token or the prompt, no token is left to score, a token outside of the vocabulary, inputs that
            cannot be passed on, a model without logits for every token, or a logit is NaN.
    """
    prepared, start = _checked(model, inputs, sequences, special_tokens or {})
    length = start.shape[1]
    with quiet_evaluation(model):
        output = run_forced(model, _call(model, prepared, sequences, length), **options)
        logits = check_logits(every_logit(model, output, sequences)[:, length - 1 : -1])
        if not model.config.is_encoder_decoder and _may_look_ahead(model, prepared):
            alone = run_forced(model, _call(model, prepared, start, length)).logits[:, -1]
            _check_unseen(model, alone, logits[:, 0])
    return output, sequences[:, length:], logits


def forced_call(model: PreTrainedModel, inputs: Mapping[str, Tensor], sequences: Tensor) -> tuple[dict[str, Any], int]:
    """The keyword arguments of the forward pass over whole sequences, and the length of what is not scored.

    Arguments and errors are those of ``forced_output``, but for what the pass itself shows.
    """
    prepared, start = _checked(model, inputs, sequences, {})
    length = start.shape[1]
    return _call(model, prepared, sequences, length), length


def run_forced(model: PreTrainedModel, call: Mapping[str, Any], **options: object) -> ModelOutput:
    """The output of a model for a call, with raw scores in its logits.

    The call of a decoder is for the Transformers model, as in ``generate``: a prefix of PEFT is in it already. Before
    the input of an encoder-decoder PEFT puts its prompt itself.
    """
    inner = transformers_model(model)
    given_here = inner.config.is_encoder_decoder and prompt_adapter(model) is not None
    with raw_scores(model) if is_sparse(model) else nullcontext():
        return (model if given_here else inner)(**call, **options)


def beginning(model: PreTrainedModel, inputs: Mapping[str, Any], rows: int, sequences: Tensor | None = None) -> Tensor:
    """The beginning (rows, T) of the sequences that ``generate`` returns: start tokens, or the prompts.

    For an encoder-decoder it is ``decoder_input_ids`` where ``inputs`` have them. For Whisper it is the prompt that
    the sequences begin with, or else the one that its own ``generate`` writes, with the language it detects.
    """
    check_prompt(model, inputs)
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
    return torch.full((rows, 1), start_token(model), dtype=torch.long, device=model.device)


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


def check_prompt(model: PreTrainedModel, inputs: Mapping[str, object]) -> None:
    """Refuse inputs of a decoder that sequences do not begin with; an encoder-decoder may have any.

    Raises:
        ValueError: no ``input_ids``, embeddings in their place, a cache, or padding on the right.
    """
    if model.config.is_encoder_decoder:
        return
    check_padding(model, inputs)
    name = type(model).__name__
    for other in ("inputs_embeds", CACHE, OLD_NAME):
        if inputs.get(other) is not None:
            raise ValueError(
                f"{name} decodes from {other} (given, or made by its own generate), which sequences do not show; give "
                "the whole prompt as input_ids, if it can read it so"
            )
    if not isinstance(inputs.get("input_ids"), Tensor):
        raise ValueError(
            f"inputs of {name} must have input_ids, the prompt that sequences begin with, had {', '.join(inputs)}"
        )


def _checked(
    model: PreTrainedModel, inputs: Mapping[str, Any], sequences: Tensor, special_tokens: Mapping[str, Any]
) -> tuple[dict[str, Any], Tensor]:
    """Inputs with one row per sequence, and what the sequences begin with.

    Those of a decoder are as ``generate`` prepares them. Arguments and errors are those of ``forced_output``.
    """
    check_generates(model)
    rows = num_sentences(inputs)
    check_tensor("sequences", sequences)
    if sequences.is_floating_point():
        raise TypeError(f"sequences must be whole numbers, the ids of strings, was {sequences.dtype}")
    if sequences.dim() != 2:
        raise ValueError(f"sequences must be (rows, length), as generate returns them, was {tuple(sequences.shape)}")
    if len(sequences) == 0 or len(sequences) % rows:
        raise ValueError(f"sequences must be a multiple of the {rows} inputs, were {len(sequences)}")
    times = len(sequences) // rows
    if model.config.is_encoder_decoder:
        prepared = repeated(inputs, times)
        start = beginning(model, prepared, len(sequences), sequences)
        if cuts_outputs(model) and inputs.get("decoder_input_ids") is None:
            prepared.pop("decoder_attention_mask", None)  # as Whisper's generate does for a prompt of its own
    else:
        prepared = _prepared(model, inputs, times, special_tokens)
        start = prepared["input_ids"]
    length = start.shape[1]
    if sequences.shape[1] <= length or not torch.equal(sequences[:, :length], start):
        raise ValueError(
            f"sequences must be {_expected(model, start)} and at least one more token, as generate returns them"
        )
    _check_string("sequences", sequences[:, length:].flatten().tolist(), model)
    return prepared, start


def _prepared(
    model: PreTrainedModel, inputs: Mapping[str, Any], times: int, special_tokens: Mapping[str, Any]
) -> dict[str, Any]:
    """What ``generate`` prepares for a decoder (prompts, mask, positions, images), ``times`` times in a row."""
    check_prompt(model, inputs)
    once = {"num_beams": 1, "num_return_sequences": 1, "max_new_tokens": 1, "use_cache": False, "stop_strings": None}
    decoder, prompts, prepared = inside_generate(model, inputs, _as_prepared, **once, **special_tokens)
    check_prompt(model, {**prepared, "input_ids": prompts})
    if decoder is not transformers_model(model):
        raise ValueError(
            f"{type(model).__name__} lets its {type(decoder).__name__} decode, which is called otherwise than the "
            f"whole, {_STEP_BY_STEP}"
        )
    prompts, prepared = model._expand_inputs_for_generation(expand_size=times, input_ids=prompts, **prepared)
    prepared.pop("logits_to_keep", None)  # generate asks for those of the last position
    return {**prepared, "input_ids": prompts}


def _as_prepared(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: object,
    stopping_criteria: object,
    generation_config: object,
    **model_kwargs: Any,
) -> tuple[PreTrainedModel, Tensor, dict[str, Any]]:
    return model, input_ids, model_kwargs


def _call(model: PreTrainedModel, prepared: Mapping[str, Any], sequences: Tensor, length: int) -> dict[str, Any]:
    """The forward pass over sequences; what a decoder needs for tokens from ``length`` on is added as by ``generate``.

    The inputs of an encoder are given as they are: no token of the output is among theirs.
    """
    two_parts = model.config.is_encoder_decoder
    ids, others = ("decoder_input_ids", "decoder_") if two_parts else ("input_ids", "")
    longer = {name: value for name, value in prepared.items() if name.startswith(others) and name != ids}
    for _ in range(sequences.shape[1] - length):
        longer = model._update_model_kwargs_for_generation({}, longer, is_encoder_decoder=two_parts)
    if two_parts:
        return {**prepared, **longer, ids: sequences}
    call: dict[str, Any] = model.prepare_inputs_for_generation(sequences, is_first_iteration=True, **longer)
    return call


def _may_look_ahead(model: PreTrainedModel, prepared: Mapping[str, Any]) -> bool:
    """Whether some of a decoder's attention is not causal, or types of tokens may make it so."""
    return any(name.endswith("token_type_ids") for name in prepared) or any(
        getattr(module, "is_causal", True) is False for module in model.modules()
    )


def _check_unseen(model: PreTrainedModel, alone: Tensor, scores: Tensor) -> None:
    """Refuse a decoder whose prompt sees the tokens after it, which decoding step by step does not show it.

    Args:
        model: the model.
        alone: raw scores (rows, V) of the first token, from a pass over the prompt alone.
        scores: the same from a pass over the whole sequence.

    Raises:
        ValueError: they differ.
    """
    size = torch.where(alone.isfinite(), alone.abs(), 1.0).amax().clamp(min=1)  # some models forbid tokens by -inf
    rounding = torch.finfo(alone.dtype).eps ** 0.5 * size
    if bool(((alone - scores).abs() > rounding).any()):
        raise ValueError(f"a prompt of {type(model).__name__} sees what follows it, {_STEP_BY_STEP}")


def every_logit(model: PreTrainedModel, output: ModelOutput, sequences: Tensor) -> Tensor:
    """The logits of every position of sequences.

    Raises:
        ValueError: they are those of other positions.
    """
    positions, tokens = output.logits.shape[1], sequences.shape[1]
    if positions != tokens:
        raise ValueError(
            f"{type(model).__name__} gives logits of {positions} positions for {tokens} tokens, {_STEP_BY_STEP}"
        )
    logits: Tensor = output.logits
    return logits
