"""Consumers that pass labels and read the logits beside the loss: they read log-probabilities too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from transformers import PreTrainedModel

from .patch import Patch
from .state import log_probabilities, sparse_models, sparse_state

_LM_EVAL = "lm_eval.models.huggingface"


def prediction_step(
    original: Callable[..., object],
    self: Any,
    model: object,
    inputs: object,
    prediction_loss_only: bool,
    *args: object,
    **kwargs: object,
) -> object:
    """``Trainer.prediction_step``, whose logits go to ``compute_metrics`` and out of ``predict``.

    Inside a block of ``raw_scores``, or where no logits are asked for, they stay as they are.
    """
    if prediction_loss_only:
        return original(self, model, inputs, prediction_loss_only, *args, **kwargs)
    return _reading_log_probabilities(original, self, model, inputs, prediction_loss_only, *args, **kwargs)


def _reading_log_probabilities(original: Callable[..., object], self: Any, *args: object, **kwargs: object) -> object:
    with ExitStack() as readings:
        for model in filter(_reads_scores, sparse_models(self.model)):
            readings.enter_context(log_probabilities(model))
        return original(self, *args, **kwargs)


def _reads_scores(model: PreTrainedModel) -> bool:
    """Whether a call with labels has raw scores of a sparse head in its logits, and nobody asked for these."""
    state = sparse_state(model)
    return state.config.head is not None and not state.readings


OF_HARNESS = (
    Patch(
        f"{_LM_EVAL}:HFLM",
        "_model_call",
        _reading_log_probabilities,
        reason="It passes labels to encoder-decoders, for their decoder's input, and takes log_softmax of the logits.",
        trigger="the harness ties the weights of a sparse model, as it does with every model before it scores",
    ),
)
