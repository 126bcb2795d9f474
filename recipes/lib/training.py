"""Training of all recipes: Trainer or its sparse form, a schedule, checkpoints to resume from."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ProgressCallback, TrainerState

import hf_sparse
from hf_sparse.training import AnnealingCallback, BucketedTrainer
from hf_sparse.training.supports import has_supports

from .progress import Progress


def last_checkpoint(folder: Path) -> str | None:
    """The last complete checkpoint in ``folder``; None if there is none.

    Trainer writes its own state last: a checkpoint whose saving was interrupted has none, or half of one.
    """
    steps: dict[int, Path] = {}
    for state in folder.glob(f"checkpoint-*/{TRAINER_STATE_NAME}"):
        try:
            steps[json.loads(state.read_text(encoding="utf-8"))["global_step"]] = state.parent
        except json.JSONDecodeError:
            continue
    return str(steps[max(steps)]) if steps else None


class StepSeconds(TrainerCallback):
    """CPU seconds of each training step of this process."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.started = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop it."""
        self.seconds.append(time.process_time() - self.started)


def annealing(start: Mapping[str, float] | None, over: float) -> list[AnnealingCallback]:
    """What moves the settings of a sparse head from where they start over a share of the steps; nothing for None.

    Raises:
        ValueError, TypeError: see ``AnnealingCallback``; for ``over`` without a start, too.
    """
    callback = AnnealingCallback(over, head=start or None)
    return [callback] if start else []


def _optimizer(
    model: PreTrainedModel, arguments: Seq2SeqTrainingArguments, embedding_lr: float
) -> torch.optim.Optimizer | None:
    """Trainer's optimizer, with a multiple of the learning rate for the embedding and the head; None for Trainer's."""
    if embedding_lr == 1:
        return None
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    embedding = {id(layer.weight) for layer in layers if layer is not None}
    groups: dict[float, list[torch.nn.Parameter]] = {}
    for weight in model.parameters():
        if weight.requires_grad:
            groups.setdefault(embedding_lr if id(weight) in embedding else 1.0, []).append(weight)
    make, options = Seq2SeqTrainer.get_optimizer_cls_and_kwargs(arguments, model)
    options = {**options, "weight_decay": arguments.weight_decay}
    lr = arguments.learning_rate
    return make([{"params": weights, "lr": multiple * lr} for multiple, weights in groups.items()], **options)


def _cosine(steps: int, schedule_steps: int, warmup: float) -> dict[str, Any]:
    """Arguments of Trainer for a rate that rises, and falls to zero at ``schedule_steps`` along half a cosine."""
    rise = max(int(schedule_steps * warmup), 1)
    cycles = 0.5 * max(steps - rise, 1) / max(schedule_steps - rise, 1)
    return {"warmup_steps": rise, "lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": cycles}}


# Arguments of Trainer for a rate that is halved after each epoch whose loss on held rows is not the lowest so far.
_HALVED_ON_PLATEAUS = {
    "lr_scheduler_type": "reduce_lr_on_plateau",
    "lr_scheduler_kwargs": {"factor": 0.5, "patience": 0, "threshold": 0.0},
    "eval_strategy": "epoch",
    "metric_for_best_model": "loss",
    "greater_is_better": False,
}


class DenseTrainer(BucketedTrainer, Seq2SeqTrainer):
    """The stock trainer, in the order of the rows that sparse models see."""


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    rows: Dataset,
    folder: Path,
    *,
    collator: Any,
    steps: int,
    lr: float,
    embedding_lr: float = 1.0,
    batch_size: int,
    seed: int,
    schedule_steps: int | None = None,
    warmup: float = 0.1,
    held: Dataset | None = None,
    adam: Mapping[str, float] | None = None,
    label_smoothing: float = 0.0,
    report_to: str = "none",
    callbacks: Sequence[TrainerCallback] = (),
    teacher: PreTrainedModel | None = None,
    teacher_weight: float = 0.5,
    bf16: bool = False,
    sparse_trainer: Any = hf_sparse.SparseSeq2SeqTrainer,
) -> list[dict[str, Any]]:
    """Train ``model`` in place, from the last checkpoint in ``folder`` if there is one.

    Args:
        model: dense or sparse, of any task; a sparse one is trained with its own loss.
        tokenizer: saved with the checkpoints; None for rows that are no text.
        rows: training rows; rows of similar length are batched together, and the batches shuffled, if there is a
            column ``length``.
        folder: for checkpoints; deleted at the end.
        collator: makes a batch of rows.
        steps: optimizer steps in all.
        lr: peak learning rate.
        embedding_lr: what it is multiplied by for the input embedding and for the matrix of the head.
        batch_size: rows per step.
        seed: of dropout and of the order of the rows.
        schedule_steps: length of the schedule, which falls to zero along half a cosine; with more than ``steps``,
            training ends before the rate is zero. None means ``steps``.
        warmup: share of the schedule in which it rises.
        held: rows whose loss decides about the rate in place of that schedule: it begins at ``lr``, and is halved
            after each epoch in which the loss did not fall below its lowest value before. None for the schedule.
        adam: settings of the optimizer that are not Trainer's, by the names of its arguments: ``adam_beta2``.
        label_smoothing: share of the uniform distribution in the targets.
        report_to: a logger of Trainer, ``"trackio"`` or ``"tensorboard"`` for instance.
        callbacks: further callbacks.
        teacher: dense model to distil from; None for none, and for rows with the columns of ``store_supports``.
        teacher_weight: weight of distillation in the loss, in (0, 1].
        bf16: whether the products of training are made in bfloat16; those of the model that is left are not.
        sparse_trainer: makes the trainer of a sparse model.

    Returns:
        Trainer's log.
    """
    sparse = hf_sparse.is_sparse(model)
    trainer_class: Any = sparse_trainer if sparse else DenseTrainer
    arguments_class: Any = hf_sparse.SparseTrainingArguments if sparse else Seq2SeqTrainingArguments
    losses = {"sparse_label_smoothing" if sparse else "label_smoothing_factor": label_smoothing}
    if teacher is not None or has_supports(rows):
        losses["distillation_weight"] = teacher_weight
    arguments = arguments_class(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=lr,
        per_device_eval_batch_size=batch_size,
        train_sampling_strategy="group_by_length" if "length" in rows.column_names else "random",
        seed=seed,
        logging_steps=max(steps // 20, 1),
        save_steps=max(steps // 5, 1),
        save_total_limit=1,
        report_to=report_to,
        bf16=bf16,
        use_cpu=bf16 and not torch.cuda.is_available(),  # which Trainer wants to be told
        disable_tqdm=False,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        **(_cosine(steps, schedule_steps or steps, warmup) if held is None else _HALVED_ON_PLATEAUS),
        **losses,
        **(adam or {}),
    )
    trainer = trainer_class(
        model,
        arguments,
        collator,
        train_dataset=rows,
        eval_dataset=held,
        processing_class=tokenizer,
        callbacks=list(callbacks),
        optimizers=(_optimizer(model, arguments, embedding_lr), None),
        **({} if teacher is None else {"teacher": teacher}),
    )
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(Progress)
    checkpoint = last_checkpoint(folder)
    done = None if checkpoint is None else TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE_NAME)))
    if done is not None and done.global_step >= steps:  # Trainer would take another step
        trainer._load_from_checkpoint(checkpoint)
        trainer.state = done
    else:
        trainer.train(resume_from_checkpoint=checkpoint)
    trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)  # else bfloat16 stays on
    if trainer.is_world_process_zero():
        shutil.rmtree(folder)
    return trainer.state.log_history
