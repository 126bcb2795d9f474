"""Sparsity under a constraint: the fewest edges of attention at a loss close to a dense model's."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from accelerate.utils import reduce
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ..attention import attention_sites
from ..attention.soft_edges import SoftEdges, soft_edges
from ..losses import softmax_loss
from ..model.dry_run import quiet_pass
from ..model.find import sparse_config, transformers_model
from ..model.sparse_model import loss_is_sum
from .labels import counted, scored
from .supports import check_positions
from .teacher import as_own_teacher, check_head, check_own_teacher, check_teacher, check_vocabulary

logger = logging.getLogger(__name__)

# Chosen on made-up models whose edges follow the price ten steps late (tests/training/test_edge_budget.py has one):
# the loss stays near its bound and below twice of it. With a rate of 0.2 and no gain it swung from nothing to six
# times.
RATE, GAIN = 0.03, 2.0
MEMORY, LARGEST_STEP = 0.8, 8.0
EXCESS = (-1.0, 4.0)
PRICES = (1e-3, 1e3)


class EdgePrice(TrainerCallback, ExportableState):
    """The price of all edges of attention, in nats: the inverse of the constraint's Lagrange multiplier.

    The *increase* of the loss over the dense one is averaged over the last steps, with weights that fall by ``MEMORY``
    from step to step; no step counts for more than ``LARGEST_STEP`` times what is allowed. The *excess* over the bound
    is in units of what is allowed. After every optimizer step the standing price changes by ``-RATE excess`` in its
    logarithm, by ``RATE`` at most, and the price is that times ``exp(-GAIN excess)``. The second factor acts at once:
    edges follow the price late, and the standing price alone would go on growing until the loss is far above its
    bound. Where training begins far above it, that factor keeps the price low until the loss has come down, and the
    standing price waits within reach. Both are saved with the trainer's state, and training resumed goes on from them.

    Args:
        standing: the standing price.
        total: sum of the weighted increases.
        weight: sum of the weights.
        excess: at the last step.

    Source: proportional and integral control of a Lagrange multiplier as in Stooke, Achiam and Abbeel 2020.
    """

    def __init__(self, standing: float = 1.0, total: float = 0.0, weight: float = 0.0, excess: float = 0.0) -> None:
        self.standing, self.total, self.weight, self.excess = standing, total, weight, excess
        self.losses: list[Tensor] = []

    @property
    def price(self) -> float:
        """What all edges cost now."""
        return _within(PRICES, self.standing * math.exp(-GAIN * self.excess))

    @property
    def increase(self) -> float:
        """How far the loss was above the dense one over the last steps, as a share of it; NaN before the first."""
        return self.total / self.weight if self.weight else math.nan

    def state(self) -> dict[str, Any]:
        """The part that a checkpoint keeps."""
        args = {"standing": self.standing, "total": self.total, "weight": self.weight, "excess": self.excess}
        return {"args": args, "attributes": {}}

    def see(self, own: Tensor, dense: Tensor) -> None:
        """Note the losses of one batch: the sparse model's, and the dense one's."""
        self.losses.append(torch.stack([own.detach().float(), dense.float()]))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Go on at the price of the checkpoint that is resumed; a step that was cut off does not count."""
        self.losses = []
        saved = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(saved, dict):
            self.__dict__.update(EdgePrice(**saved["args"]).__dict__)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Change the price by what the batches of the step cost, over all processes."""
        if self.losses:
            own, dense = reduce(torch.stack(self.losses).sum(0)).tolist()
            self.losses = []
            if own or dense:  # else no label of the step counted, and it says nothing
                self.move(own / dense - 1 if dense else math.inf, args.max_loss_increase)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Warn where the loss ended above its bound."""
        if self.increase > 1.5 * args.max_loss_increase:
            logger.warning(
                "at the end of training the loss was at least %.2g %% above the dense model's, more than "
                "max_loss_increase=%g allows; train for more steps, or with a smaller settings_learning_rate",
                100 * self.increase,
                args.max_loss_increase,
            )

    def move(self, increase: float, allowed: float) -> None:
        """Change the price after a step whose loss was ``increase`` above the dense one, as a share of it."""
        self.excess = EXCESS[1]
        if math.isfinite(increase):
            largest = LARGEST_STEP * allowed
            self.total = MEMORY * self.total + _within((-largest, largest), increase)
            self.weight = MEMORY * self.weight + 1
            self.excess = _within(EXCESS, self.increase / allowed - 1)
        self.standing = _within(PRICES, self.standing * math.exp(-RATE * min(self.excess, 1.0)))


def _within(bounds: tuple[float, float], value: float) -> float:
    return min(bounds[1], max(bounds[0], value))


class EdgeBudget:
    """Minimizes the share of attention's edges, subject to ``loss <= (1 + increase) dense loss`` on the same batches.

    The training loss is ``loss + price soft_share``, with ``SoftEdges.soft_share`` in the place of the number of
    edges, which has no gradient, and the price that ``EdgePrice`` finds. With a ``teacher_weight`` w its first part is
    ``(1 - w) loss + w KL(q, p)``, for the softmax q of the dense model in the same pass, which says more than labels
    do about what a key was good for. The bound is on the labels' loss alone either way.

    Args:
        model: the sparse model that is trained, dense at its head.
        teacher: the dense model whose loss is the measure. None takes the model itself, without its adapter and its
            maps, where nothing that is trained is left then.
        shifts_labels: whether logits at one position are scored by the label of the next.
        teacher_weight: of the dense model's distribution in the loss, in [0, 1].

    Raises:
        ValueError: a sparse head, whose loss is no measure beside a dense one's; attention that depends on what its
            keys received; activation checkpointing; a teacher that is sparse or missing; with a weight, a teacher
            with another vocabulary.
        TypeError: a teacher that is not a Transformers model.

    Source: the constraint as in GECO (Rezende and Viola 2018, Eq. 3) with loss and penalty exchanged; edges under a
        bound on the loss as in sparse attention post-training (arXiv 2512.05865). The count is our own.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        teacher: PreTrainedModel | None,
        shifts_labels: bool,
        teacher_weight: float = 0.0,
    ) -> None:
        name = type(transformers_model(model)).__name__
        if sparse_config(model).head is not None:
            raise ValueError(
                "max_loss_increase compares the loss with a dense model's, and that of a sparse head is another one; "
                "make only attention sparse, or set max_loss_increase=None"
            )
        if any(site.is_sequential for _, site in attention_sites(model)):
            raise ValueError(
                f"attention of this {name} has bounds or coverage, whose edges have no price; set "
                "max_loss_increase=None"
            )
        _check_no_checkpointing(model)
        if teacher is None:
            check_own_teacher(model, "max_loss_increase")
        else:
            check_teacher(teacher)
        if teacher_weight:
            check_head(model)
            if teacher is not None:
                check_vocabulary(teacher, model)
        self.model = model
        self.teacher = teacher
        self.shifts_labels = shifts_labels
        self.teacher_weight = teacher_weight
        self.edges = SoftEdges()  # of the last forward pass

    def forward(self, model: PreTrainedModel, price: EdgePrice, parts: int, **inputs: Any) -> Any:
        """The output of ``model(**inputs)``, with the price of its edges in its loss while it trains.

        Args:
            model: the model that is trained, wrapped as the trainer runs it.
            price: it notes the losses.
            parts: number of batches whose losses add up to that of a step.
            **inputs: with ``labels``; ``num_items_in_batch`` as for the model.

        Raises:
            ValueError: no labels, activation checkpointing, nothing that is trained changes the edges, or logits of a
                causal model that do not go with the labels position by position.
        """
        if model.training and inputs.get("labels") is None:
            raise ValueError("max_loss_increase needs labels: it compares losses")
        if model.training:  # it may have been switched on since
            _check_no_checkpointing(self.model)
        with soft_edges(model) as self.edges:
            outputs = model(**inputs)
        if not model.training:
            return outputs
        share = self.edges.soft_share
        if not share.requires_grad:
            raise ValueError("the edges have no gradient: train weights of the layers, or settings of the maps")
        if self.shifts_labels:  # virtual tokens come before a row, whose first label is then scored too
            check_positions(outputs.logits, inputs["labels"], "max_loss_increase; or set max_loss_increase=None")
        dense = self.dense_outputs(inputs)
        price.see(outputs["loss"], dense.loss)
        if self.teacher_weight:
            distilled = self.distilled(outputs.logits, dense.logits, inputs)
            outputs["loss"] = (1 - self.teacher_weight) * outputs["loss"] + self.teacher_weight * distilled
        outputs["loss"] = outputs["loss"] + price.price / parts * share
        return outputs

    def dense_outputs(self, inputs: dict[str, Any]) -> Any:
        """The dense model's outputs of a batch, with a loss that is divided as that of the sparse one is.

        In training mode, as the loss that it is held against: dropout raises both.
        """
        if self.teacher is None:
            with quiet_pass(self.model, training=True), as_own_teacher(self.model):
                return self.model(**inputs)
        items = inputs.get("num_items_in_batch")
        given = {name: value for name, value in inputs.items() if name != "num_items_in_batch"}
        with quiet_pass(self.teacher, training=True):
            outputs = self.teacher(**given)
        if items is not None and not loss_is_sum(self.teacher):  # some models forget to divide by it
            count = counted(inputs, self.shifts_labels).sum()
            # A mean over no label is NaN, and would be the loss of the whole step.
            outputs["loss"] = torch.where(count == 0, 0.0, outputs["loss"] * count / items)
        return outputs

    def distilled(self, logits: Tensor, dense_logits: Tensor, inputs: dict[str, Any]) -> Tensor:
        """The Kullback-Leibler divergence of the model's softmax from the dense one's, divided as the loss is."""
        check_positions(logits, inputs["labels"], "distillation; or set distillation_weight=0")
        z, q = (scored(each, inputs, self.shifts_labels) for each in (logits, dense_logits))
        return softmax_loss(z, q.float().softmax(-1), num_items=inputs.get("num_items_in_batch"))


def _check_no_checkpointing(model: PreTrainedModel) -> None:
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError(
            f"activation checkpointing is on in this {type(transformers_model(model)).__name__}, which would compute "
            "the edges that max_loss_increase counts a second time; call model.activation_checkpointing_disable()"
        )
