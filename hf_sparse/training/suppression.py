"""Training sparse to decode dense: softmax mass outside the sparse head's support has a price."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from ..losses import suppression_loss
from ..model.find import sparse_config, transformers_model
from ..model.readings import probabilities
from .labels import check_labels, counted_labels, run_scored, scored
from .supports import check_positions


class Suppression:
    """``L(z, y) + weight S(z, y)``: the model's own loss, and ``suppression_loss`` of the same rows.

    S is in the units of softmax at temperature 1, by which the scores are read once the head is dense again
    (``unsparsify``).

    Args:
        model: the sparse model that learns.
        weight: of the price, above 0.
        shifts_labels: whether logits at one position are scored by the label of the next.

    Raises:
        ValueError: a head that gives every class some probability, or a fused loss.

    Source: Xu et al. (TS^2, ICLR 2026), with sparsemax and a weight of 0.25.
    """

    def __init__(self, model: PreTrainedModel, weight: float, shifts_labels: bool) -> None:
        name, config = type(transformers_model(model)).__name__, sparse_config(model)
        if config.head is None or config.head.alpha == 1.0:  # softmax
            raise ValueError(
                f"suppression_weight is the price of classes outside the support of a sparse head, and {name} has no "
                'such head; call sparsify(model, head="sparsemax") before training, or set suppression_weight=0'
            )
        if config.fused_loss:
            raise ValueError(
                "fused_loss=True never makes the logits that suppression_weight needs; make the model sparse with "
                "fused_loss=False, or set suppression_weight=0"
            )
        self.model = model
        self.weight = weight
        self.shifts_labels = shifts_labels

    def forward(self, model: PreTrainedModel, **inputs: Any) -> Any:
        """The output of ``model(**inputs)``, with the price in its loss.

        Args:
            model: the model that learns, wrapped as the trainer runs it.
            **inputs: with ``labels``; ``num_items_in_batch`` as for the model.

        Raises:
            ValueError: no labels, or logits that do not go with them position by position.
        """
        check_labels(inputs, "suppression")
        outputs, scores = run_scored(self.model, model, inputs)
        check_positions(scores, inputs["labels"], "suppression; or set suppression_weight=0")
        z, y = scored(scores, inputs, self.shifts_labels), counted_labels(inputs, self.shifts_labels)
        p = probabilities(self.model, z.detach(), log_probs=False)
        outputs["loss"] = outputs["loss"] + self.weight * suppression_loss(
            z, y, p, num_items=inputs.get("num_items_in_batch")
        )
        return outputs
