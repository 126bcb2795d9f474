"""Which labels count in a model's loss, at which position of its logits, and the scores of these."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

from ..model.distribution import log_distribution
from ..model.example import NoExampleError, first_run
from ..model.find import sparse_state, transformers_model
from ..model.lazy_logits import LinearLogits
from ..model.readings import raw_scores

Logits = TypeVar("Logits", Tensor, LinearLogits)


def shifts_labels(model: PreTrainedModel) -> bool:
    """Whether logits at one position are scored by the label of the next.

    Whether the first label of a row changes the loss of made-up tokens tells. Transformers goes by the name of the
    class, which misleads for some (``BartForCausalLM``) and says nothing for others (``GPT2LMHeadModel``); it decides
    where a model has no such loss, or reads no made-up tokens.
    """
    inner = transformers_model(model)
    if inner.config.is_encoder_decoder:
        return False
    loss_type = getattr(inner, "loss_type", None)
    by_name = _asks_for_loss(inner) if loss_type is None else LOSS_MAPPING.get(loss_type) is ForCausalLMLoss
    if inner.get_output_embeddings() is None or (loss_type is not None and not by_name):
        return by_name
    try:
        inputs = first_run(inner, None).inputs
        one, other = (_loss_of_first(inner, inputs, label) for label in (0, 1))
    except NoExampleError:
        return by_name
    if one is None or other is None or one.is_meta:  # FSDP loads the weights in one process alone
        return by_name
    return bool((one == other) | one.isnan())  # where no label counts some losses are zero, and others NaN


def _asks_for_loss(model: PreTrainedModel) -> bool:
    """Whether ``forward`` has ``loss_function`` compute its loss: that of next tokens, if no name says otherwise."""
    forward = inspect.unwrap(getattr(type(model), "_dense_class", type(model)).forward)
    return "loss_function" in getattr(getattr(forward, "__code__", None), "co_names", ())


def _loss_of_first(model: PreTrainedModel, inputs: Mapping[str, Any], label: int) -> Tensor | None:
    """The loss where the first label of each row alone counts; None where the model has none for labels alone."""
    if "input_ids" not in inputs:
        return None
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[:, 0] = label
    run = first_run(model, {**inputs, "labels": labels})
    return getattr(run.output, "loss", None)


def check_labels(inputs: Mapping[str, Any], purpose: str) -> None:
    """Refuse a batch without labels.

    Raises:
        ValueError: it has none.
    """
    if inputs.get("labels") is None:
        raise ValueError(f"{purpose} needs labels: they tell which positions count")


def run_scored(sparse: PreTrainedModel, model: Any, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """The output of ``model(**inputs)``, and the raw scores that a loss is computed of, or ``LinearLogits`` of them.

    A ``compute_loss`` of the user's own reads log-probabilities in the output; see ``logits_guard``.

    Args:
        sparse: the sparse model.
        model: the same, wrapped as the trainer runs it.
        inputs: with ``labels``.
    """
    with raw_scores(sparse):
        outputs = model(**inputs)
    scores, state = outputs.logits, sparse_state(sparse)
    if state.gives_log_probs(sparse, has_labels=True):
        read = scores.compute() if isinstance(scores, LinearLogits) else scores
        outputs["logits"] = log_distribution(state.head, read)
    return outputs, scores


def counted(inputs: Mapping[str, Any], shifts_labels: bool) -> Tensor:
    """Whether a label counts in the loss, (batch, ...): without the first of a row where labels are shifted.

    Args:
        inputs: a batch with ``labels``, perhaps with ``shift_labels``, which are shifted already.
        shifts_labels: whether logits at one position are scored by the label of the next.
    """
    return _labels_in_place(inputs, shifts_labels) != -100


def _labels_in_place(inputs: Mapping[str, Any], shifts_labels: bool) -> Tensor:
    """The labels of a batch, each at the position of the logits that it scores."""
    labels: Tensor | None = inputs.get("shift_labels")
    if labels is None:
        labels = inputs["labels"][..., 1:] if shifts_labels else inputs["labels"]
    return labels


def scored_rows(logits: Logits, inputs: Mapping[str, Any], shifts_labels: bool) -> tuple[Logits, Tensor]:
    """The ``logits`` (..., length, V) that a label scores, and whether it counts: (..., length) bool."""
    shifted = shifts_labels and inputs.get("shift_labels") is None
    return (logits[..., :-1, :] if shifted else logits), counted(inputs, shifts_labels)


def scored(logits: Logits, inputs: Mapping[str, Any], shifts_labels: bool) -> Logits:
    """The rows of ``logits`` (..., length, V) whose label counts: (N, V)."""
    rows, counts = scored_rows(logits, inputs, shifts_labels)
    return rows[counts]


def counted_labels(inputs: Mapping[str, Any], shifts_labels: bool) -> Tensor:
    """The labels of these rows: (N,)."""
    return _labels_in_place(inputs, shifts_labels)[counted(inputs, shifts_labels)]
