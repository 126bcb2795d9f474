"""Trainers for sparse models: the loss of the head's map, exact under accumulation, with sparsity in the logs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel, Seq2SeqTrainer
from transformers.trainer_utils import IntervalStrategy, default_compute_objective

from ..attention import observe
from ..attention.site import learned_parameters
from ..config import MapConfig
from ..model.cold_start import cold_start
from ..model.find import is_sparse, sparse_config, sparse_state
from ..model.lazy_logits import computed_rows
from ..model.model_card import FIGURES
from ..model.readings import probabilities
from .arguments import SparseTrainingArguments, check_arguments
from .buckets import BucketedTrainer
from .distillation import Distillation
from .edge_budget import EdgeBudget, EdgePrice
from .labels import counted_labels, scored_rows, shifts_labels
from .supports import IDS, PROBABILITIES, SupportCollator, has_supports, without_supports
from .suppression import Suppression

logger = logging.getLogger(__name__)

_ROUNDING = 1e-6  # of an epoch, which is counted in floating point


class _Sparsity:
    """Running means of what the logs show: ``FIGURES`` by name."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.sums = dict.fromkeys(FIGURES, (0.0, 0.0))

    def add(self, name: str, total: float, count: float) -> None:
        old_total, old_count = self.sums[name]
        self.sums[name] = (old_total + total, old_count + count)

    def take(self, accelerator: Accelerator) -> dict[str, float]:
        """The means since the last call, over what all processes saw."""
        sums = list(self.sums.values())
        self.clear()
        if accelerator.num_processes > 1:
            seen_here = torch.tensor(sums, dtype=torch.float64, device=accelerator.device)
            sums = cast(Any, accelerator.reduce(seen_here)).tolist()
        return {name: total / count for name, (total, count) in zip(FIGURES, sums) if count}


def _objective(metrics: dict[str, float]) -> float:
    """Transformers' default objective: the loss, or the sum of what ``compute_metrics`` returned."""
    own = tuple(f"_{name}" for name in FIGURES)
    return default_compute_objective({name: value for name, value in metrics.items() if not name.endswith(own)})


class SparseTrainer(BucketedTrainer):
    """``Trainer`` for sparse models.

    Args:
        model: what ``sparsify`` returned.
        args: ``SparseTrainingArguments``.
        teacher: the dense model to learn from, for ``distillation_weight`` above 0, or to be held against, for
            ``max_loss_increase``; moved to the training device. None where the model is a PEFT adapter, or trains
            nothing but settings of its maps: then its own base, dense, is the teacher, without a second copy. None
            too where the training data have a teacher's supports, from ``store_supports``.
        *rest: as for ``Trainer``.
        **kwargs: as for ``Trainer``.

    With distillation the training loss is ``(1 - distillation_weight) L(z, y) + distillation_weight L(z, q)``: the
    labels' (with its smoothing, if any) and that against the softmax ``q`` of the teacher. See ``Distillation``.

    With ``suppression_weight`` softmax mass outside the support of the head has a price in the training loss, for a
    model whose head is to be dense again after training (``unsparsify``). See ``Suppression``.

    With ``max_loss_increase`` the training loss has the price of attention's edges besides, and the price follows from
    the bound on the loss: see ``EdgeBudget``. Make settings of the maps learned (``learn_settings``), or train the
    weights too. With distillation besides, the teacher is the dense model of the bound. Logs ``edge_price``,
    ``loss_increase`` and ``attention_edges``, the share of visible keys with weight.

    Logs, beside the loss: ``head_support`` and ``attention_support`` (mean number of nonzero classes or keys, a row)
    and their ``_zero_rate`` (share of exact zeros), and ``head_missed_rate``, the share of targets of probability
    zero; with the prefix ``eval_`` after an evaluation. Several processes fill up the last batch with rows that were
    there before, and these figures count them again. The first step is counted too, and warns where most targets are
    missed at a temperature below ``"auto"``.

    ``train_sampling_strategy="group_by_length"`` shuffles the batches; see ``BucketedTrainer``.

    Raises:
        TypeError: other training arguments.
        ValueError: a dense model, or an option that would bypass the sparse loss (``label_smoothing_factor``,
            ``use_liger_kernel``, ``compute_loss_func``); ``predict_with_generate``, for which there is
            ``SparseSeq2SeqTrainer``; a teacher without a weight; ``settings_learning_rate`` where
            nothing is learned; what ``Distillation``, ``Suppression`` and ``EdgeBudget`` refuse.
    """

    reads_sparse_options = True  # of ``SparseTrainingArguments``; read by trainer_guard

    def __init__(self, model: Any = None, args: Any = None, *rest: object, teacher: Any = None, **kwargs: Any) -> None:
        args = SparseTrainingArguments("trainer_output") if args is None else args
        check_arguments(args, teacher)
        if args.predict_with_generate and not isinstance(self, Seq2SeqTrainer):
            raise ValueError(
                "predict_with_generate=True needs a trainer that generates: use SparseSeq2SeqTrainer, or set it False"
            )
        super().__init__(model, args, *rest, **kwargs)
        if self.compute_loss_func is not None:
            raise ValueError("compute_loss_func would replace the loss of the model's map; leave it None")
        if args.settings_learning_rate is not None and self.optimizer:
            raise ValueError(
                "settings_learning_rate is for learned settings, and an optimizer is given; give it a group for them, "
                "or set it to None"
            )
        self._sparsity = _Sparsity()
        self._teacher = teacher
        if args.distillation_weight:
            self.data_collator: Any = SupportCollator(self.data_collator)
        self._prepare(self.model)

    def call_model_init(self, trial: Any = None) -> Any:
        """``Trainer``'s own, which gives every run a new model."""
        model = super().call_model_init(trial)
        # Where it is the first the trainer is not complete; in a search the arguments are set later.
        if hasattr(self, "_sparsity") and trial is None:
            self._prepare(model)
        return model

    def _hp_search_setup(self, trial: Any) -> None:
        """``Trainer``'s own, which sets the arguments of a trial after its model was made."""
        super()._hp_search_setup(trial)
        if trial is not None:
            check_arguments(self.args, None)  # without the teacher: a trial may do without it
            self._prepare(self.model)

    def hyperparameter_search(
        self, hp_space: Any = None, compute_objective: Any = None, *rest: Any, **kwargs: Any
    ) -> Any:
        """``Trainer``'s own; the default objective leaves out the sparsity that evaluations add to their metrics."""
        return super().hyperparameter_search(hp_space, compute_objective or _objective, *rest, **kwargs)

    def _prepare(self, model: Any) -> None:
        """Check a model that is to be trained, and make what adds to its loss.

        Raises:
            ValueError: see the class.
        """
        args: SparseTrainingArguments = self.args
        self._check_model(model, args)
        self._has_advised = False  # on the temperature of its head
        # Trainer itself goes by the name of the class.
        shifts = self._loss_shifts_labels = shifts_labels(model)
        self._distillation: Distillation | None = None
        self._suppression: Suppression | None = None
        self._budget: EdgeBudget | None = None
        stored, weight = has_supports(self.train_dataset), args.distillation_weight
        if args.max_loss_increase is not None:
            self._budget = EdgeBudget(model, self._placed(self._teacher), shifts, weight)
            self.remove_callback(EdgePrice)  # that of a model before
            self.add_callback(EdgePrice())
        elif weight:
            self._distillation = Distillation(model, self._placed(self._teacher), weight, shifts, stored)
        elif args.suppression_weight:
            self._suppression = Suppression(model, args.suppression_weight, shifts)

    def _check_model(self, model: Any, args: SparseTrainingArguments) -> None:
        """Refuse a model or data that do not go with sparse training.

        Raises:
            ValueError: see the class.
        """
        if not is_sparse(model):
            raise ValueError(f"{type(model).__name__} is dense; call sparsify(model, ...) before training it")
        if args.settings_learning_rate is not None and not learned_parameters(model):
            raise ValueError("settings_learning_rate is for learned settings, and none is learned; set it to None")
        if has_supports(self.train_dataset) and args.max_loss_increase is not None:
            raise ValueError(
                "max_loss_increase runs the dense model itself and reads no stored supports; remove the columns "
                f"{IDS!r} and {PROBABILITIES!r}"
            )
        if has_supports(self.train_dataset) and not args.distillation_weight:
            raise ValueError(
                f"the training data have a teacher's supports but distillation_weight is 0; set it above 0, or remove "
                f"the columns {IDS!r} and {PROBABILITIES!r}"
            )

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if self.args.distillation_weight:
            columns = cast(Any, self)._signature_columns
            self._signature_columns = [*dict.fromkeys([*columns, IDS, PROBABILITIES])]

    def _placed(self, teacher: PreTrainedModel | None) -> PreTrainedModel | None:
        """The teacher, on the training device."""
        if self.args.n_gpu > 1:
            raise ValueError("a teacher does not support several GPUs in one process; start one for each")
        return teacher if teacher is None else teacher.to(self.args.device)

    def create_optimizer(self, *args: object, **kwargs: Any) -> torch.optim.Optimizer:
        """The optimizer, with a group of its own for learned settings where they have a learning rate."""
        own, is_new = self.args.settings_learning_rate, self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if own is not None and is_new:
            learned = {id(weight): weight for weight in learned_parameters(self.model)}
            for group in optimizer.param_groups:
                group["params"] = [weight for weight in group["params"] if id(weight) not in learned]
            optimizer.add_param_group({"params": list(learned.values()), "lr": own, "weight_decay": 0.0})
        return optimizer

    def _forward(self, model: PreTrainedModel, num_items: torch.Tensor | int | None) -> Any:
        """The forward pass that a loss is computed by: the model's own, or with what an option adds to its loss."""
        if self._budget:
            # Losses divided by the items of the whole step add up over its batches, and over processes.
            summed = model.training and num_items is not None and self.model_accepts_loss_kwargs
            processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
            parts = self.current_gradient_accumulation_steps * processes if summed else 1
            return partial(self._budget.forward, model, self._edge_price, parts)
        added = self._distillation or self._suppression
        return partial(added.forward, model) if added and model.training else model

    @property
    def _edge_price(self) -> EdgePrice:
        """The price of edges; another object after training was resumed."""
        return next(each for each in self.callback_handler.callbacks if isinstance(each, EdgePrice))

    def compute_loss(
        self,
        model: PreTrainedModel,
        inputs: dict,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The model's own loss, with what options add to it; counts supports on the way where they will be logged."""
        if model.training and self.args.sparse_label_smoothing:
            inputs = {**inputs, "label_smoothing": self.args.sparse_label_smoothing}
        if not model.training:
            inputs = without_supports(inputs)
        elif IDS in inputs and not (self._distillation and self._distillation.stored):
            raise ValueError(
                f"the rows have a teacher's supports, which would teach nothing: train_dataset, a "
                f"{type(self.train_dataset).__name__}, does not tell its columns. Give a datasets.Dataset (select and "
                "concatenate_datasets take the place of torch's classes, Dataset.from_list that of a list), or its "
                "IterableDataset with features=... in map"
            )
        run = self._run(model, num_items_in_batch)
        return super().compute_loss(run, inputs, return_outputs, num_items_in_batch)

    def _run(self, model: PreTrainedModel, num_items: torch.Tensor | int | None) -> Any:
        """``_forward``, with a count of supports on the way where they will be logged."""
        run = self._forward(model, num_items)
        return partial(self._counted, model, run) if self._counts_supports(model) else run

    def _counted(self, model: PreTrainedModel, run: Callable[..., Any], /, **inputs: Any) -> Any:
        """The output of ``run(**inputs)``, whose supports are counted."""
        with observe(model) as counts:
            outputs = run(**inputs)
        for count in counts.values():
            self._sparsity.add("attention_support", count.nonzero, count.rows)
            self._sparsity.add("attention_zero_rate", count.keys - count.nonzero, count.keys)
        if self._budget:
            self._sparsity.add("attention_edges", self._budget.edges.kept, self._budget.edges.visible)
        if sparse_config(self.model).head is not None and "labels" in inputs:
            self._count_head(outputs["logits"], inputs)
        return outputs

    def _counts_supports(self, model: PreTrainedModel) -> bool:
        """Whether supports of this call will be logged: in evaluation, at the first step and where a log is due."""
        if not self.args.log_sparsity or not model.training:
            return self.args.log_sparsity
        step, epoch = self.state.global_step, self.state.epoch or 0.0
        if step == 0:
            return True
        if self.args.logging_strategy == IntervalStrategy.EPOCH:
            after = epoch * (step + 1) / step  # the epoch when this step has been made
            return step + 1 == self.state.max_steps or int(after + _ROUNDING) > int(epoch + _ROUNDING)
        return (step + 1) % max(self.state.logging_steps, 1) == 0

    @torch.no_grad()
    def _count_head(self, logits: Any, inputs: dict[str, Any]) -> None:
        if logits.shape[:-1] != inputs["labels"].shape:
            return
        labels = counted_labels(inputs, self._loss_shifts_labels)
        rows, vocab_size, total, missed = len(labels), logits.shape[-1], 0.0, 0.0
        log_probs = sparse_state(self.model).gives_log_probs(self.model, has_labels=True)
        for z in computed_rows(*scored_rows(logits, inputs, self._loss_shifts_labels)):
            p = probabilities(self.model, z, log_probs=log_probs)
            own, labels = labels[: len(z)], labels[len(z) :]
            total += float((p > 0).count_nonzero())  # where sum() would first turn each into eight bytes
            missed += float((p.gather(-1, own[:, None]) == 0).sum())
        self._sparsity.add("head_support", total, rows)
        self._sparsity.add("head_zero_rate", rows * vocab_size - total, rows * vocab_size)
        self._sparsity.add("head_missed_rate", missed, rows)
        if self.state.global_step == 0 and self.model.training and not self._has_advised:
            map_config = cast(MapConfig, sparse_config(self.model).head)
            advice = cold_start(map_config, missed / max(rows, 1), vocab_size)
            if advice is not None and self.is_world_process_zero():
                logger.warning("at the first step %s", advice)
                self._has_advised = True  # the first step may have several batches

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """``Trainer``'s own, which may call ``generate``, on data with supports too."""
        return super().prediction_step(model, without_supports(inputs), *args, **kwargs)

    def log(self, logs: dict[str, float], *args: object, **kwargs: object) -> None:
        """Log, with the sparsity seen since the last training log."""
        if "loss" in logs:
            logs = logs | self._sparsity.take(self.accelerator)
            if self._budget:
                logs |= {"edge_price": self._edge_price.price, "loss_increase": self._edge_price.increase}
        super().log(logs, *args, **kwargs)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Evaluate, with the sparsity on the evaluation data among the metrics."""
        self._sparsity.clear()
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        metrics = self._sparsity.take(self.accelerator)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        if metrics:  # for the model card; what calibration promised holds until training
            promised = {} if self.state.global_step else sparse_state(self.model).metrics
            sparse_state(self.model).metrics = promised | metrics
        return output


class SparseSeq2SeqTrainer(SparseTrainer, Seq2SeqTrainer):
    """``Seq2SeqTrainer`` for sparse models; arguments, logs and errors as for ``SparseTrainer``."""

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, *args: Any, **kwargs: Any
    ) -> Any:
        """``Seq2SeqTrainer``'s own, which runs the model past ``compute_loss`` where it also calls ``generate``."""
        if self.args.predict_with_generate and not prediction_loss_only:
            model = self._run(model, None)
        return super().prediction_step(model, inputs, prediction_loss_only, *args, **kwargs)
