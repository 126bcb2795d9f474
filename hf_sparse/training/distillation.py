"""Distillation: part of the loss aims the sparse head at the distribution of a dense teacher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..config import MapConfig
from ..model.dry_run import quiet_evaluation
from ..model.example import example_inputs
from ..model.state import dense_attention, dense_head, is_sparse, sparse_config, transformers_model


class Distillation:
    """``(1 - weight) L(z, y) + weight L(z, q)``: the model's own loss mixed with that against a teacher's ``q``.

    L is the Fenchel-Young loss of the head's map (cross-entropy where only attention is sparse), ``q`` the softmax of
    the teacher's logits, and both terms run over the positions whose label counts and are divided by the same count.
    The gradient of the second by the logits is ``p - q``: like the first it has the factor of the head's loss, see
    ``SparseConfig.loss_scale``.

    Args:
        model: the sparse model that learns.
        teacher: a dense language model with the same vocabulary. None takes the model itself, without its adapter
            and its maps: the same weights, so that only a second forward pass is paid for, not memory.
        weight: of the teacher, in (0, 1].
        shifts_labels: whether logits at one position are scored by the label of the next.

    Raises:
        ValueError: no head, a fused loss, a teacher that is sparse or has another vocabulary, or no teacher where
            the model is no adapter on frozen weights.
        TypeError: a teacher that is not a Transformers model.

    Source: Hinton et al. 2015, with the loss of Blondel et al. 2020, Eq. 14, in place of cross-entropy.
    """

    def __init__(
        self, model: PreTrainedModel, teacher: PreTrainedModel | None, weight: float, shifts_labels: bool
    ) -> None:
        head = transformers_model(model).get_output_embeddings()
        name = type(transformers_model(model)).__name__
        if head is None:
            raise ValueError(f"{name} has no language-model head to distil into; set distillation_weight=0")
        if sparse_config(model).fused_loss:
            raise ValueError(
                "fused_loss=True never makes the logits that distillation compares with the teacher's; make the model "
                "sparse with fused_loss=False, or set distillation_weight=0"
            )
        if teacher is None:
            _check_is_its_own_teacher(model)
        else:
            _check_teacher(teacher, len(head.weight))
        self.model = model
        self.teacher = teacher
        self.weight = weight
        self.shifts_labels = shifts_labels

    def forward(self, model: PreTrainedModel, **inputs: Any) -> Any:
        """The output of ``model(**inputs)``, with the teacher's part in its loss.

        Args:
            model: the model that learns, wrapped as the trainer runs it.
            **inputs: with ``labels``; ``num_items_in_batch`` as for the model.

        Raises:
            ValueError: no labels, or logits that do not go with them position by position.
        """
        if inputs.get("labels") is None:
            raise ValueError("distillation needs labels: they tell which positions count")
        outputs = model(**inputs)
        shape = tuple(outputs.logits.shape)
        if shape[:-1] != inputs["labels"].shape:
            raise ValueError(
                f"logits {shape} and labels {tuple(inputs['labels'].shape)} must agree in all but the vocabulary for "
                "distillation; set distillation_weight=0"
            )
        logits, targets = self.scored(outputs.logits, inputs), self.scored(self.teacher_logits(inputs), inputs)
        config = sparse_config(self.model)
        map_config = config.head or MapConfig("softmax")
        distilled = map_config.loss()(logits, targets.float().softmax(-1), num_items=inputs.get("num_items_in_batch"))
        outputs["loss"] = (1 - self.weight) * outputs["loss"] + self.weight * config.loss_factor * distilled
        return outputs

    def scored(self, logits: Tensor, inputs: dict[str, Any]) -> Tensor:
        """The rows of ``logits`` (batch, length, V) whose label counts: (N, V)."""
        labels = inputs["labels"]
        if inputs.get("shift_labels") is not None:
            labels = inputs["shift_labels"]
        elif self.shifts_labels:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return logits[labels != -100]

    def teacher_logits(self, inputs: dict[str, Any]) -> Tensor:
        """The teacher's logits (batch, length, V), in evaluation mode and without a gradient."""
        teacher = self.model if self.teacher is None else self.teacher
        for_loss = {"num_items_in_batch", "label_smoothing", "shift_labels"}
        if not teacher.config.is_encoder_decoder:  # others make the decoder's input from the labels
            for_loss.add("labels")
        given = {name: value for name, value in inputs.items() if name not in for_loss}
        with quiet_evaluation(teacher), _as_own_teacher(teacher) if self.teacher is None else nullcontext():
            return teacher(**given).logits


def _check_teacher(teacher: PreTrainedModel, num_classes: int) -> None:
    dense = transformers_model(teacher)
    name = type(dense).__name__
    if is_sparse(teacher):
        raise ValueError(f"the teacher, a {name}, is sparse; give a dense one, or unsparsify(teacher)")
    head = dense.get_output_embeddings()
    if head is None:
        raise ValueError(f"the teacher, a {name}, has no language-model head")
    if len(cast(Tensor, head.weight)) != num_classes:
        raise ValueError(
            f"the teacher, a {name}, has a vocabulary of {len(cast(Tensor, head.weight))}, the model one of "
            f"{num_classes}; their distributions cannot be compared"
        )


def _check_is_its_own_teacher(model: PreTrainedModel) -> None:
    """A model can teach itself where all that is trained can be switched off: an adapter on frozen weights."""
    if not hasattr(model, "disable_adapter"):
        raise ValueError(
            "distillation_weight needs a teacher: pass teacher=... (the dense model), or train a PEFT adapter, whose "
            "base teaches it without a second copy"
        )
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    inputs = example_inputs(transformers_model(model))
    with quiet_evaluation(model), torch.enable_grad(), _as_own_teacher(model):
        total = model(**inputs).logits.sum()
    gradients = torch.autograd.grad(total, list(trained.values()), allow_unused=True) if total.requires_grad else ()
    moving = [name for name, gradient in zip(trained, gradients) if gradient is not None]
    if moving:
        raise ValueError(
            f"{moving[0]!r} is trained but no part of the adapter: the model cannot be its own teacher, which would "
            "change as it learns; freeze it, or pass teacher=... (the dense model)"
        )


@contextmanager
def _as_own_teacher(model: PreTrainedModel) -> Iterator[None]:
    """The model as it was before it was adapted and made sparse, on the same weights."""
    with model.disable_adapter(), dense_attention(model), dense_head(model):
        yield
