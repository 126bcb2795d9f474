"""Methods by which ``generate`` of a sparse model decodes from the distribution of its head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from ..fertility.source import source_bounds
from .beam_record import _postprocess_outputs, _stack_split_outputs
from .continuous import init_continuous_batching
from .dense_blocks import dense_head
from .find import sparse_state
from .kept_support import KeptSupport, may_count_calls
from .screened_generation import SCREENED, asked_for_screened, check_screened, screen_cache, screened_caches
from .word_times import _extract_token_timestamps, generate_with_fallback


def generate(self: PreTrainedModel, *args: object, **kwargs: object) -> Any:
    """The model's own ``generate``, in which a part that generates by itself decodes from its own head.

    ``cache_implementation="screened"`` is the one that Transformers does not know: a ``ScreenedCache``.
    """
    screened = kwargs.get("cache_implementation") == SCREENED
    if screened:
        check_screened(self, kwargs)
        del kwargs["cache_implementation"]
    with sparse_state(self).generating(self), screened_caches(screened):
        return self._dense_class.generate(self, *args, **kwargs)


def _prepare_cache_for_generation(
    self: PreTrainedModel, generation_config: GenerationConfig, *args: Any, **kwargs: Any
) -> Any:
    """The model's own, with its own arguments; where ``generate`` was asked for it, its caches are screened.

    Kyutai's model lends this method to its codec, which does not generate and has none; the codec's stay as they are.
    """
    is_lent = not self.can_generate()
    own = GenerationMixin if is_lent else self._dense_class
    found = own._prepare_cache_for_generation(self, generation_config, *args, **kwargs)
    if asked_for_screened() and not is_lent:
        screen_cache(self, generation_config, args[0])
    return found


def _get_logits_processor(
    self: PreTrainedModel, generation_config: GenerationConfig, *args: object, **kwargs: object
) -> Any:
    """The model's own processors, which leave what has probability zero under a sparse head at zero.

    Raises:
        ValueError: DoLa, which multiplies hidden states with a sparse head by itself.
    """
    processors = self._dense_class._get_logits_processor(self, generation_config, *args, **kwargs)
    state = sparse_state(self)
    if state.config.head is None:
        return processors
    if generation_config.dola_layers is not None:
        raise ValueError(
            "dola_layers contrasts the head's distribution with those of earlier layers, which DoLa takes by a "
            "softmax of its own; leave it out, or pass head=None"
        )
    if any(map(may_count_calls, processors)):
        state.screen.stop()
    return KeptSupport(processors, lambda num_rows: state.screen.complete(state.head, num_rows))


def _maybe_prepare_encoder_kwargs_for_generation(
    self: PreTrainedModel,
    inputs_tensor: Tensor,
    model_kwargs: dict[str, Any],
    model_input_name: str | None,
    *args: object,
) -> dict[str, Any]:
    """The model's own, with the bounds it works out from its source, once for all steps; beams repeat them."""
    reads_ids = model_input_name == "input_ids" and model_kwargs.get("encoder_outputs") is None
    if reads_ids and model_kwargs.get("fertility") is None:
        bounds = source_bounds(self, inputs_tensor, model_kwargs.get("attention_mask"))
        model_kwargs |= {} if bounds is None else {"fertility": bounds}
    return self._dense_class._maybe_prepare_encoder_kwargs_for_generation(
        self, inputs_tensor, model_kwargs, model_input_name, *args
    )


def _get_candidate_generator(
    self: PreTrainedModel,
    *,
    generation_config: GenerationConfig,
    assistant_model: Any,
    model_kwargs: dict[str, Any],
    **kwargs: Any,
) -> Any:
    """The model's own, for assisted decoding: an assistant without constrained attention is not given fertilities."""
    check_verified(self, generation_config)
    if not getattr(assistant_model, "_constrained", None):
        model_kwargs = {name: value for name, value in model_kwargs.items() if name != "fertility"}
    return self._dense_class._get_candidate_generator(
        self,
        generation_config=generation_config,
        assistant_model=assistant_model,
        model_kwargs=model_kwargs,
        **kwargs,
    )


def check_verified(model: PreTrainedModel, generation_config: GenerationConfig) -> None:
    """Refuse assisted decoding that would take what has probability zero under a sparse head.

    Raises:
        ValueError: the head was to be mixed with the assistant's distribution.
    """
    if sparse_state(model).config.head is not None and generation_config.assistant_ensemble_weight is not None:
        raise ValueError(
            "assistant_ensemble_weight takes tokens from the assistant that have probability zero here; leave it out, "
            "or decode from hf_sparse.Ensemble([model, assistant])"
        )


def heal_tokens(self: PreTrainedModel, *args: object, **kwargs: object) -> Any:
    """The model's own, which biases scores of tokens that begin like the prompt's last one: here raw scores.

    Where all of these had probability zero no bias would help, and another token would replace what the user wrote.
    """
    with dense_head(self):
        return self._dense_class.heal_tokens(self, *args, **kwargs)


# What sparse classes of models that can generate define in the place of their own; some models lack some of them.
OVERRIDES: tuple[Callable[..., object], ...] = (
    generate,
    _get_logits_processor,
    _prepare_cache_for_generation,
    heal_tokens,
    init_continuous_batching,
    _maybe_prepare_encoder_kwargs_for_generation,
    _get_candidate_generator,
    generate_with_fallback,
    _extract_token_timestamps,
    _postprocess_outputs,
    _stack_split_outputs,
)
