"""How the recipes train: Trainer or its sparse form, a cosine schedule, and pieces that survive an interruption."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from progress import Progress
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import get_last_checkpoint

import hf_sparse


class StepSeconds(TrainerCallback):
    """CPU seconds of the training steps this process has done."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.started = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop it."""
        self.seconds.append(time.process_time() - self.started)


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    rows: Dataset,
    folder: Path,
    *,
    collator: Any,
    steps: int,
    lr: float,
    batch_size: int,
    seed: int,
    schedule_steps: int | None = None,
    label_smoothing: float = 0.0,
    report_to: str = "none",
    callbacks: Sequence[TrainerCallback] = (),
) -> list[dict[str, Any]]:
    """Train ``model`` in place, from the last checkpoint in ``folder`` where there is one.

    Args:
        model: dense or sparse, of any task; a sparse one is trained with its own loss.
        tokenizer: saved beside the checkpoints; None where the rows are no text.
        rows: what ``collator`` makes batches of; rows of like length come together where a column ``length`` says it.
        folder: for checkpoints; gone when training has ended.
        collator: makes a batch of rows.
        steps: optimizer steps in all.
        lr: peak learning rate.
        batch_size: rows a step.
        seed: for dropout and the order of the rows.
        schedule_steps: the learning rate rises over a tenth of these, then falls to zero along half a cosine; where
            they are more than ``steps``, it has not reached zero at the end. None means ``steps``.
        label_smoothing: the uniform distribution's part in the targets.
        report_to: where Trainer logs to, ``"trackio"`` or ``"tensorboard"`` for instance.
        callbacks: further callbacks.

    Returns:
        What Trainer logged.
    """
    schedule_steps = schedule_steps or steps
    warmup = max(schedule_steps // 10, 1)
    sparse = hf_sparse.is_sparse(model)
    trainer_class: Any = hf_sparse.SparseSeq2SeqTrainer if sparse else Seq2SeqTrainer
    arguments_class: Any = hf_sparse.SparseTrainingArguments if sparse else Seq2SeqTrainingArguments
    smoothing = {"sparse_label_smoothing" if sparse else "label_smoothing_factor": label_smoothing}
    arguments = arguments_class(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=lr,
        warmup_steps=warmup,
        lr_scheduler_type="cosine",
        lr_scheduler_kwargs={"num_cycles": 0.5 * max(steps - warmup, 1) / max(schedule_steps - warmup, 1)},
        train_sampling_strategy="group_by_length" if "length" in rows.column_names else "random",
        seed=seed,
        logging_steps=max(steps // 20, 1),
        save_steps=max(steps // 5, 1),
        save_total_limit=1,
        report_to=report_to,
        disable_tqdm=False,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        **smoothing,
    )
    trainer = trainer_class(
        model, arguments, collator, train_dataset=rows, processing_class=tokenizer, callbacks=list(callbacks)
    )
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(Progress)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)) if folder.is_dir() else None)
    if trainer.is_world_process_zero():
        shutil.rmtree(folder)
    return trainer.state.log_history
