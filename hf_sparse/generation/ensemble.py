"""Several models that decode as one: their probabilities are averaged at every step."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    Cache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput

from ..cache_name import CACHE
from ..config import MapConfig, SparseConfig
from ..functional.head_weight import num_classes
from ..functional.rows import accumulation_dtype
from ..model.decoding import check_verified
from ..model.dry_run import as_it_runs
from ..model.find import is_sparse, sparse_config
from ..model.kept_support import KeptSupport
from ..model.screened_generation import SCREENED
from ..model.state import SparseState, set_state
from ._ensemble_checks import check_members, check_tokenizers
from ._ensemble_parts import JoinedEncoders, join_caches, split_caches, split_states
from .inputs import start_token


class EnsembleConfig(PreTrainedConfig):
    """The configuration that ``generate`` reads from an ensemble."""

    model_type = "hf_sparse_ensemble"


class Ensemble(PreTrainedModel, GenerationMixin):
    """``p(y | x) = (1 / n) sum_i p_i(y | x)`` at every step, over models with one vocabulary.

    Every mode of ``generate`` works as for one model, screened caches apart; so do ``enumerate_support`` and the other
    functions of this package. ``output.logits`` are the logarithm of the averaged distribution: a token has
    probability zero where it has in every member. Members may differ in architecture, size, maps and head. A member
    with an alpha-ReLU head takes part with its weights divided by their sum; a dense member makes every probability
    positive.

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

    members: Iterable[PreTrainedModel]  # a ModuleList

    def __init__(
        self, members: Sequence[nn.Module], tokenizers: Sequence[PreTrainedTokenizerBase] | None = None
    ) -> None:
        if not isinstance(members, Iterable):
            raise TypeError(f"members must be models, was {members!r}")
        models = [as_it_runs(member) for member in members]
        check_members(models)
        if tokenizers is not None:
            check_tokenizers(tokenizers, len(models))
        first = models[0]
        super().__init__(
            EnsembleConfig(
                vocab_size=num_classes(first.get_output_embeddings()),
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
        set_state(self, SparseState(config))
        self.eval()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: Cache | None = None,
        logits_to_keep: int = 0,
        member_inputs: list[dict[str, object]] | None = None,
        past_key_values: Cache | None = None,
        **kwargs: object,
    ) -> CausalLMOutputWithPast | Seq2SeqLMOutput:
        """Log-probabilities of the averaged distribution.

        Args:
            input_ids: token ids (B, T), as the members take them.
            attention_mask: (B, T), 0 at padding.
            position_ids: (B, T), for members that take them.
            decoder_input_ids: (B, T) of encoder-decoders.
            encoder_outputs: the output of ``get_encoder()``, in place of ``input_ids``.
            cache: a cache that an earlier call returned.
            logits_to_keep: number of last positions to compute; 0 for all.
            member_inputs: keyword arguments for each member, in place of all others, as ``generate`` makes them.
            past_key_values: the name of ``cache`` before Transformers 5.24.
            **kwargs: for every member, such as ``use_cache``.

        Returns:
            A ``CausalLMOutputWithPast`` or ``Seq2SeqLMOutput`` with ``logits`` (B, T, V), float32 (float64 if a
            member's are), and the cache, under the name that Transformers has for it.

        Raises:
            TypeError: a cache that does not come from an ensemble.
            ValueError: labels, attention weights or hidden states asked for, which only members have; a member whose
                logits at the last position are NaN.
        """
        if member_inputs is None:
            given = {
                "input_ids": input_ids,
                "attention_mask": attention_mask,
                "position_ids": position_ids,
                "decoder_input_ids": decoder_input_ids,
            }
            given = {name: value for name, value in given.items() if value is not None}
            cache = past_key_values if cache is None else cache
            member_inputs = self._inputs_of_members(given | kwargs, encoder_outputs, cache)
        outputs = [
            _member_output(number, member, inputs, logits_to_keep)
            for number, (member, inputs) in enumerate(zip(self.members, member_inputs))
        ]
        log_mean = functools.reduce(torch.logaddexp, [log_p for log_p, _ in outputs]) - math.log(len(outputs))
        caches = [cache for _, cache in outputs if cache is not None]
        output_class = Seq2SeqLMOutput if self.config.is_encoder_decoder else CausalLMOutputWithPast
        joined = join_caches(caches) if len(caches) == len(outputs) else None
        return output_class(logits=log_mean, **{CACHE: joined})

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        encoder_outputs: BaseModelOutput | None = None,
        *,
        logits_to_keep: int = 0,
        **kwargs: object,
    ) -> dict[str, object]:
        """The inputs of one decoding step, prepared by each member."""
        cache = cast("Cache | None", kwargs.pop(CACHE, None))
        inputs = self._inputs_of_members(kwargs, encoder_outputs, cache)
        steps = [member.prepare_inputs_for_generation(input_ids, **own) for member, own in zip(self.members, inputs)]
        return {"member_inputs": steps, "logits_to_keep": logits_to_keep}

    def generate(self, *args: object, **kwargs: object) -> Any:
        """That of Transformers.

        Raises:
            ValueError: ``cache_implementation="screened"``, which Transformers does not know either.
        """
        if kwargs.get("cache_implementation") == SCREENED:
            raise ValueError(
                'cache_implementation="screened" is for one model, and an ensemble keeps a cache of each member; '
                "leave it out, or call generate of one of ensemble.members"
            )
        return super().generate(*args, **kwargs)

    def init_continuous_batching(self, *args: object, **kwargs: object) -> None:
        """Refused: each member has a cache of its own.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("continuous batching is not supported for ensembles; use generate")

    def _get_logits_processor(self, *args: object, **kwargs: object) -> KeptSupport:
        return KeptSupport(super()._get_logits_processor(*args, **kwargs))

    def _get_candidate_generator(self, *, generation_config: GenerationConfig, **kwargs: Any) -> Any:
        check_verified(self, generation_config)
        return super()._get_candidate_generator(generation_config=generation_config, **kwargs)

    def heal_tokens(self, *args: object, **kwargs: object) -> Tensor:
        """By the first member: a bias lifts nothing that has probability zero in the mean."""
        first: Any = next(iter(self.members))
        return cast(Tensor, first.heal_tokens(*args, **kwargs))

    def get_encoder(self, *args: object, **kwargs: object) -> nn.Module:
        """All encoders as one: ``last_hidden_state`` holds theirs side by side."""
        return JoinedEncoders(member.get_encoder(*args, **kwargs) for member in self.members)

    def save_pretrained(self, *args: object, **kwargs: object) -> None:
        """Refused: an ensemble has no weights of its own.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("an ensemble is not saved as one; save each of ensemble.members")

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, object], *args: object, **kwargs: object
    ) -> None:
        if model_kwargs.get(CACHE) is not None:
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
            return
        caches = []
        inputs = self._inputs_of_members(model_kwargs, model_kwargs.get("encoder_outputs"), None)
        for member, own in zip(self.members, inputs):
            member._prepare_cache_for_generation(generation_config, own, *args, **kwargs)
            caches.append(own.get(CACHE))
            if generation_config.use_cache and caches[-1] is None:
                raise ValueError(
                    f"{type(member).__name__} keeps its cache elsewhere than in {CACHE}, where an ensemble needs it; "
                    "pass use_cache=False"
                )
        if generation_config.use_cache:
            model_kwargs[CACHE] = join_caches(caches)

    def _inputs_of_members(
        self, inputs: dict[str, object], encoder_outputs: BaseModelOutput | None, cache: Cache | None
    ) -> list[dict[str, object]]:
        """One call's inputs as each member takes them, with its own part of encoder states and cache."""
        for name in ("labels", "output_attentions", "output_hidden_states"):
            if inputs.get(name) is not None and inputs[name] is not False:
                raise ValueError(f"an ensemble has no {name} of its own; ask each of ensemble.members for them")
        members = list(self.members)
        nothing = [None] * len(members)
        states = nothing if encoder_outputs is None else split_states(encoder_outputs, members)
        caches = nothing if cache is None else split_caches(cache)
        return [_inputs_of_member(inputs, *own) for own in zip(members, states, caches)]


def _inputs_of_member(
    inputs: dict[str, object], member: PreTrainedModel, states: BaseModelOutput | None, cache: Cache | None
) -> dict[str, object]:
    takes_positions = "position_ids" in inspect.signature(member.forward).parameters
    own = {name: value for name, value in inputs.items() if name != "position_ids" or takes_positions}
    if states is not None:
        own["encoder_outputs"] = states
    if cache is not None:
        own[CACHE] = cache
    return own


def _member_output(
    number: int, member: PreTrainedModel, inputs: dict[str, object], logits_to_keep: int
) -> tuple[Tensor, Cache | None]:
    """A member's log-probabilities (B, T, V), at least float32, and its cache."""
    options: dict[str, object] = {"return_dict": True}
    if is_sparse(member):
        options["log_probs"] = True
    if "logits_to_keep" in inspect.signature(member.forward).parameters:
        options["logits_to_keep"] = logits_to_keep
    output = member(**{**inputs, **options})
    logits = output.logits[:, -logits_to_keep:]
    if logits[:, -1].isnan().any():
        raise ValueError(f"member {number} of the ensemble ({type(member).__name__}) has NaN in its logits")
    return logits.log_softmax(-1, dtype=accumulation_dtype(logits)), output.get(CACHE)
