"""Which labels count in a model's loss, and at which position of its logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

from ..model.dry_run import quiet_evaluation
from ..model.example import NoExampleError, first_run
from ..model.state import transformers_model


def shifts_labels(model: PreTrainedModel) -> bool:
    """Whether logits at one position are scored by the label of the next.

    Transformers tells by the name of the class, and cannot for some (``GPT2LMHeadModel``, ``XLNetLMHeadModel``): for
    these, whether the first label of a row changes the loss of made-up tokens tells.
    """
    inner = transformers_model(model)
    if inner.config.is_encoder_decoder:
        return False
    loss_type = getattr(inner, "loss_type", None)
    if loss_type is not None or inner.get_output_embeddings() is None:
        return LOSS_MAPPING.get(loss_type) is ForCausalLMLoss
    try:
        inputs, _ = first_run(inner, None)
    except NoExampleError:
        return False
    labels = torch.full_like(cast(Tensor, inputs["input_ids"]), -100)
    losses = []
    for label in (0, 1):
        labels[:, 0] = label
        with quiet_evaluation(inner):
            losses.append(inner(**inputs, labels=labels).loss)
    return bool((losses[0] == losses[1]) | losses[0].isnan())


def counted(inputs: Mapping[str, Any], shifts_labels: bool) -> Tensor:
    """Whether a label counts in the loss, (batch, ...): without the first of a row where labels are shifted.

    Args:
        inputs: a batch with ``labels``, perhaps with ``shift_labels``, which are shifted already.
        shifts_labels: whether logits at one position are scored by the label of the next.
    """
    labels: Tensor | None = inputs.get("shift_labels")
    if labels is None:
        labels = inputs["labels"][..., 1:] if shifts_labels else inputs["labels"]
    return labels != -100
