"""Several models that decode as one: their probabilities are averaged at every step."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput

from ..config import MapConfig, SparseConfig
from ..functional.rows import accumulation_dtype
from ..model.decoding import KeptSupport, init_continuous_batching
from ..model.state import SparseState, is_sparse, set_state, sparse_config, transformers_model
from ._continuations import start_token
from ._ensemble_cache import join_caches, split_caches


class EnsembleConfig(PreTrainedConfig):
    """What ``generate`` asks of an ensemble's configuration."""

    model_type = "hf_sparse_ensemble"


class Ensemble(PreTrainedModel, GenerationMixin):
    """``p(y | x) = (1 / n) sum_i p_i(y | x)`` at every step, over models with one vocabulary.

    All of ``generate`` works as for one model, ``enumerate_support`` and the other functions of this package too.
    ``output.logits`` are the logarithm of the averaged distribution: a token has probability zero where it has in
    every member. Members may differ in architecture, size, maps and head; a member with an alpha-ReLU head takes
    part with its weights divided by their sum, a dense member makes every probability positive.

    Args:
        members: language models, all encoder-decoders or all decoders only, with the same vocabulary, start and end
            tokens, on one device. They are put in evaluation mode and not changed otherwise. Settings of ``generate``
            are those of the first.
        tokenizers: the members' tokenizers, to be compared token by token; None trusts that vocabularies of one size
            are the same.

    Raises:
        TypeError: a member that is not a Transformers model, or that cannot generate.
        ValueError: no members; members of different kinds, vocabularies, start or end tokens, or devices.

    Source: Peters et al. 2019, Section 4.1 and Table 1 ("averaging the raw probabilities at each time step").
    Cost: that of the members, one after another; each keeps its own cache.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from hf_sparse import Ensemble, probabilities, sparsify
    >>> sizes = {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "initializer_range": 0.5}
    >>> special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    >>> members = [sparsify(GPT2LMHeadModel(GPT2Config(**sizes, **special)), head=head)
    ...            for head in ("entmax15", "sparsemax")]
    >>> both = Ensemble(members)
    >>> prompt = torch.tensor([[1, 5, 7]])
    >>> p = probabilities(both, both(prompt).logits)
    >>> mean = sum(probabilities(member, member(prompt).logits) for member in members) / 2
    >>> bool(torch.allclose(p, mean, atol=1e-6))
    True
    >>> both.generate(prompt, num_beams=3, max_new_tokens=2).shape[1] > 3
    True
    """

    config_class = EnsembleConfig
    init_continuous_batching = init_continuous_batching

    members: Any  # a ModuleList of models

    def __init__(self, members: Sequence[nn.Module], tokenizers: Sequence[Any] | None = None) -> None:
        models = [transformers_model(member) for member in members]
        _check_members(models)
        if tokenizers is not None:
            _check_tokenizers(tokenizers, len(models))
        first = models[0]
        super().__init__(
            EnsembleConfig(
                vocab_size=len(first.get_output_embeddings().weight),
                is_encoder_decoder=first.config.is_encoder_decoder,
                decoder_start_token_id=start_token(first) if first.config.is_encoder_decoder else None,
            )
        )
        self.members = nn.ModuleList(models)
        self.main_input_name = first.main_input_name
        self.generation_config = copy.deepcopy(first.generation_config)
        # log p is a fixed point of log_softmax: softmax of our logits is the averaged distribution.
        sparse = all(is_sparse(model) and sparse_config(model).head is not None for model in models)
        config = SparseConfig(head=MapConfig("softmax") if sparse else None)
        set_state(self, SparseState(config, config))
        self.eval()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        logits_to_keep: int = 0,
        member_inputs: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Log-probabilities of the averaged distribution.

        Args:
            input_ids: token ids (B, T), as the members take them.
            attention_mask: (B, T), 0 at padding.
            position_ids: (B, T), for members that take them.
            decoder_input_ids: (B, T) of encoder-decoders.
            encoder_outputs: what ``get_encoder()`` returned, in place of ``input_ids``.
            past_key_values: a cache that an earlier call returned.
            logits_to_keep: only the last so many positions; 0 for all.
            member_inputs: keyword arguments for each member, in place of all others, as ``generate`` makes them.
            **kwargs: for every member, as ``use_cache``.

        Returns:
            A ``CausalLMOutputWithPast`` or ``Seq2SeqLMOutput`` with ``logits`` (B, T, V), float32 (float64 if a
            member's are), and ``past_key_values``.

        Raises:
            TypeError: a cache that is not an ensemble's.
            ValueError: labels, attention weights or hidden states asked for, which are those of single members; a
                member whose logits at the last position are NaN.
        """
        if member_inputs is None:
            given = {
                "input_ids": input_ids,
                "attention_mask": attention_mask,
                "position_ids": position_ids,
                "decoder_input_ids": decoder_input_ids,
            }
            given = {name: value for name, value in given.items() if value is not None} | kwargs
            member_inputs = self._shared(given, encoder_outputs, past_key_values)
        log_ps, caches = [], []
        for number, (member, inputs) in enumerate(zip(self.members, member_inputs)):
            asked: dict[str, Any] = {"log_probs": True} if is_sparse(member) else {}
            if "logits_to_keep" in _takes(member):
                asked["logits_to_keep"] = logits_to_keep
            output = member(**{**inputs, **asked, "return_dict": True})
            logits = output.logits[:, -logits_to_keep:]
            if logits[:, -1].isnan().any():
                raise ValueError(f"member {number} of the ensemble ({type(member).__name__}) has NaN in its logits")
            log_ps.append(logits.log_softmax(-1, dtype=accumulation_dtype(logits)))
            caches.append(output.get("past_key_values"))
        result = Seq2SeqLMOutput if self.config.is_encoder_decoder else CausalLMOutputWithPast
        remembered = None if any(cache is None for cache in caches) else join_caches(caches)
        log_mean = functools.reduce(torch.logaddexp, log_ps) - math.log(len(log_ps))
        return result(logits=log_mean, past_key_values=remembered)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, past_key_values: Any = None, encoder_outputs: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """What each member makes of one decoding step."""
        logits_to_keep = kwargs.pop("logits_to_keep", 0)
        shared = self._shared(kwargs, encoder_outputs, past_key_values)
        steps = [
            member.prepare_inputs_for_generation(input_ids, **inputs) for member, inputs in zip(self.members, shared)
        ]
        return {"member_inputs": steps, "logits_to_keep": logits_to_keep}

    def _get_logits_processor(self, *args: Any, **kwargs: Any) -> KeptSupport:
        return KeptSupport(super()._get_logits_processor(*args, **kwargs))

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        """All encoders as one: ``last_hidden_state`` holds theirs side by side."""
        return _Encoders(member.get_encoder(*args, **kwargs) for member in self.members)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Refused: an ensemble has no weights of its own.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("an ensemble is not saved as one; save each of ensemble.members")

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        if model_kwargs.get("past_key_values") is not None:
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
            return
        caches = []
        for member, inputs in zip(self.members, self._shared(model_kwargs, model_kwargs.get("encoder_outputs"), None)):
            member._prepare_cache_for_generation(generation_config, inputs, *args, **kwargs)
            caches.append(inputs.get("past_key_values"))
            if generation_config.use_cache and caches[-1] is None:
                raise ValueError(
                    f"{type(member).__name__} does not keep what it has read in past_key_values, by which an ensemble "
                    "goes; pass use_cache=False"
                )
        if generation_config.use_cache:
            model_kwargs["past_key_values"] = join_caches(caches)

    def _shared(self, inputs: dict[str, Any], encoder_outputs: Any, cache: Any) -> list[dict[str, Any]]:
        """One call's inputs as each member takes them, with its own part of what was encoded and remembered."""
        for name in ("labels", "output_attentions", "output_hidden_states"):
            if inputs.get(name) is not None and inputs[name] is not False:
                raise ValueError(f"an ensemble has no {name} of its own; ask each of ensemble.members for them")
        caches = None if cache is None else split_caches(cache)
        shared = []
        for number, member in enumerate(self.members):
            takes_positions = "position_ids" in _takes(member)
            own = {name: value for name, value in inputs.items() if name != "position_ids" or takes_positions}
            if encoder_outputs is not None:
                widths = [_width(each) for each in self.members]
                hidden = encoder_outputs.last_hidden_state.split(widths, dim=-1)[number]
                own["encoder_outputs"] = BaseModelOutput(last_hidden_state=hidden.to(member.dtype))
            if caches is not None:
                own["past_key_values"] = caches[number]
            shared.append(own)
        return shared


class _Encoders(nn.Module):
    """Several encoders that read the same input."""

    def __init__(self, encoders: Any) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutput:
        states = [encoder(*args, **kwargs).last_hidden_state for encoder in self.encoders]
        lengths = [state.shape[1] for state in states]
        if len(set(lengths)) > 1:
            raise ValueError(f"the members' encoders turn one input into different lengths: {lengths}")
        return BaseModelOutput(last_hidden_state=torch.cat(states, dim=-1))


def _takes(member: Any) -> Any:
    return inspect.signature(member.forward).parameters


def _width(model: Any) -> int:
    return model.get_encoder().config.hidden_size


def _check_members(models: Sequence[PreTrainedModel]) -> None:
    if not models:
        raise ValueError("an ensemble needs at least one member, was given none")
    for number, model in enumerate(models):
        if not model.can_generate() or model.get_output_embeddings() is None:
            raise TypeError(f"member {number} of the ensemble ({type(model).__name__}) is not a model that generates")
    _check_same("is_encoder_decoder", [model.config.is_encoder_decoder for model in models], models)
    sizes = [len(model.get_output_embeddings().weight) for model in models]
    _check_same("the size of the vocabulary", sizes, models)
    _check_same("the end token", [model.generation_config.eos_token_id for model in models], models)
    if models[0].config.is_encoder_decoder:
        _check_same("the decoder's start token", [start_token(model) for model in models], models)
    _check_same("main_input_name", [model.main_input_name for model in models], models)
    _check_same("device", [str(model.device) for model in models], models)


def _check_same(what: str, values: list[Any], models: Sequence[PreTrainedModel]) -> None:
    for number, value in enumerate(values):
        if value != values[0]:
            raise ValueError(
                f"members of an ensemble must share their vocabulary and kind, but {what} is {values[0]} for member 0 "
                f"({type(models[0]).__name__}) and {value} for member {number} ({type(models[number]).__name__})"
            )


def _check_tokenizers(tokenizers: Sequence[Any], num_members: int) -> None:
    if len(tokenizers) != num_members:
        raise ValueError(f"one tokenizer for each of the {num_members} members is needed, were {len(tokenizers)}")
    first = tokenizers[0].get_vocab()
    for number, tokenizer in enumerate(tokenizers):
        other = tokenizer.get_vocab()
        differ = sorted(token for token in first.keys() | other.keys() if first.get(token) != other.get(token))
        if differ:
            shown = "; ".join(f"{token!r} is {first.get(token)} and {other.get(token)}" for token in differ[:3])
            raise ValueError(
                f"the tokenizers of members 0 and {number} differ in {len(differ)} of {len(first)} and {len(other)} "
                f"tokens: {shown}"
            )
