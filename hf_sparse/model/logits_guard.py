"""Consumers that would read what they do not want in the logits: log-probabilities, or raw scores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from ..functional.log_zero import on_floor
from .find import sparse_models, sparse_state
from .patch import Patch
from .readings import log_probabilities, raw_scores

logger = logging.get_logger(__name__)

_LM_EVAL = "lm_eval.models.huggingface"
_SENTENCES = "sentence_transformers.base.modules.transformer"
_OF_LIBRARIES = ("transformers", "hf_sparse", "trl")  # a compute_loss from elsewhere may read labels and logits
_of_whole_texts: ContextVar[bool] = ContextVar("whether the harness scores texts for their perplexity", default=False)


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

    Inside a block of ``raw_scores``, or where nobody reads them, they stay as they are.
    """
    if prediction_loss_only and _reads_no_logits(self):
        return original(self, model, inputs, prediction_loss_only, *args, **kwargs)
    return _reading_log_probabilities(original, self, model, inputs, prediction_loss_only, *args, **kwargs)


def _reading_log_probabilities(original: Callable[..., object], self: Any, *args: object, **kwargs: object) -> object:
    with ExitStack() as readings:
        for model in filter(_is_unread, sparse_models(self.model)):
            readings.enter_context(log_probabilities(model))
        return original(self, *args, **kwargs)


def training_step(original: Callable[..., object], self: Any, *args: object, **kwargs: object) -> object:
    """``Trainer.training_step``, where a ``compute_loss`` of the user's own may read the logits beside the labels."""
    if _reads_no_logits(self):
        return original(self, *args, **kwargs)
    for model in filter(_is_unread, sparse_models(self.model)):
        if sparse_state(model).config.fused_loss:
            logger.warning_once(
                f"{type(self).__name__} has a compute_loss of its own, which may read the logits: the fused loss of "
                f"this {type(model).__name__} is computed unfused, in more memory; if it reads none, train in a block "
                "of hf_sparse.raw_scores(model)"
            )
    return _reading_log_probabilities(original, self, *args, **kwargs)


def _reads_no_logits(trainer: Any) -> bool:
    """Whether a trainer's ``compute_loss`` takes the model's loss as it is, or passes no labels."""
    return trainer.compute_loss.__module__.partition(".")[0] in _OF_LIBRARIES


def _model_call(original: Callable[..., Tensor], self: Any, *args: object, **kwargs: object) -> Tensor:
    """``HFLM._model_call``: log-probabilities; in ``loglikelihood_rolling`` minus infinity in place of the floor."""
    logits: Any = _reading_log_probabilities(original, self, *args, **kwargs)
    if _of_whole_texts.get() and any(map(_has_sparse_head, sparse_models(self.model))):
        return logits.masked_fill(on_floor(logits), -torch.inf)
    return logits


def _loglikelihood_rolling(original: Callable[..., object], self: Any, *args: object, **kwargs: object) -> object:
    """``HFLM.loglikelihood_rolling``: minus infinity for a text with an impossible token."""
    before = _of_whole_texts.set(True)
    try:
        return original(self, *args, **kwargs)
    finally:
        _of_whole_texts.reset(before)


def _token_scores(original: Callable[..., object], self: Any, *args: object, **kwargs: object) -> object:
    """``Transformer.forward``, whose logits of a masked language model go to SPLADE's pooling."""
    with ExitStack() as readings:
        if self.transformer_task == "fill-mask":
            for model in filter(_has_sparse_head, sparse_models(self.model)):
                readings.enter_context(raw_scores(model))  # within a trainer's block, too
        return original(self, *args, **kwargs)


def _is_unread(model: PreTrainedModel) -> bool:
    """Whether the head of a model is sparse, and nobody asked for one of the two kinds of logits."""
    return _has_sparse_head(model) and sparse_state(model).readings.innermost(model) is None


def _has_sparse_head(model: PreTrainedModel) -> bool:
    return sparse_state(model).config.head is not None


OF_HARNESS = (
    Patch(
        f"{_LM_EVAL}:HFLM",
        "_model_call",
        _model_call,
        reason="It passes labels to encoder-decoders, for their decoder's input, and takes log_softmax of the logits.",
        after=_LM_EVAL,
    ),
    Patch(
        f"{_LM_EVAL}:HFLM",
        "loglikelihood_rolling",
        _loglikelihood_rolling,
        reason="The perplexity of a text with an impossible token is infinite; that of the floor is some number, or "
        "overflows.",
        after=_LM_EVAL,
    ),
)

OF_SENTENCE_TRANSFORMERS = (
    Patch(
        f"{_SENTENCES}:Transformer",
        "forward",
        _token_scores,
        reason="SPLADE takes the positive part of a masked language model's scores; no log-probability is positive.",
        after=_SENTENCES,
    ),
)
