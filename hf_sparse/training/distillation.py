"""Distillation: part of the loss aims the sparse head at the distribution of a dense teacher."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..config import MapConfig
from ..model.dry_run import quiet_evaluation
from ..model.find import sparse_config
from .labels import check_labels, counted, run_scored, scored
from .supports import Supports, check_positions, without_supports
from .teacher import as_own_teacher, check_head, check_own_teacher, check_teacher, check_vocabulary


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
        stored: whether ``q`` comes with the data, from ``store_supports``; then there is no teacher, and the loss may
            be fused.

    Raises:
        ValueError: no head, a fused loss, a teacher that is sparse or has another vocabulary, no teacher where
            the model is no adapter on frozen weights, or a teacher beside stored supports.
        TypeError: a teacher that is not a Transformers model.

    Source: Hinton et al. 2015, with the loss of Blondel et al. 2020, Eq. 14, in place of cross-entropy.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        teacher: PreTrainedModel | None,
        weight: float,
        shifts_labels: bool,
        stored: bool = False,
    ) -> None:
        check_head(model)
        if stored and teacher is not None:
            raise ValueError("the data have a teacher's supports already; pass teacher=None, or remove their columns")
        if sparse_config(model).fused_loss and not stored:
            raise ValueError(
                "fused_loss=True never makes the logits that distillation compares with the teacher's; make the model "
                "sparse with fused_loss=False, or set distillation_weight=0"
            )
        if stored:
            pass
        elif teacher is None:
            check_own_teacher(model, "distillation_weight")
        else:
            check_teacher(teacher)
            check_vocabulary(teacher, model)
        self.model = model
        self.teacher = teacher
        self.weight = weight
        self.shifts_labels = shifts_labels
        self.stored = stored

    def forward(self, model: PreTrainedModel, **inputs: Any) -> Any:
        """The output of ``model(**inputs)``, with the teacher's part in its loss.

        Args:
            model: the model that learns, wrapped as the trainer runs it.
            **inputs: with ``labels``; ``num_items_in_batch`` as for the model.

        Raises:
            ValueError: no labels, or logits that do not go with them position by position.
        """
        check_labels(inputs, "distillation")
        outputs, scores = run_scored(self.model, model, without_supports(inputs))
        check_positions(scores, inputs["labels"], "distillation; or set distillation_weight=0")
        config = sparse_config(self.model)
        map_config, logits = config.head or MapConfig("softmax"), scored(scores, inputs, self.shifts_labels)
        num_items = inputs.get("num_items_in_batch")
        if self.stored:
            supports = Supports.taken(inputs, counted(inputs, self.shifts_labels), logits.shape[-1])
            distilled = supports.loss(map_config, logits, num_items)
        else:
            targets = scored(self.teacher_logits(inputs), inputs, self.shifts_labels).float().softmax(-1)
            distilled = map_config.loss()(logits, targets, num_items=num_items)
        outputs["loss"] = (1 - self.weight) * outputs["loss"] + self.weight * config.loss_factor * distilled
        return outputs

    def teacher_logits(self, inputs: dict[str, Any]) -> Tensor:
        """The teacher's logits (batch, length, V), in evaluation mode and without a gradient."""
        teacher = self.model if self.teacher is None else self.teacher
        for_loss = {"num_items_in_batch", "label_smoothing", "shift_labels"}
        if not teacher.config.is_encoder_decoder:  # others make the decoder's input from the labels
            for_loss.add("labels")
        given = {name: value for name, value in inputs.items() if name not in for_loss}
        with quiet_evaluation(teacher), as_own_teacher(teacher) if self.teacher is None else nullcontext():
            return teacher(**given).logits
