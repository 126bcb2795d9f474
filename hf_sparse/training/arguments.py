"""Training arguments of sparse models, and those that would train past the loss of the head's map."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel, Seq2SeqTrainingArguments

from ..functional.arguments import check_flag, check_number


@dataclass
class SparseTrainingArguments(Seq2SeqTrainingArguments):
    """``Seq2SeqTrainingArguments`` (all of ``TrainingArguments`` among them) with six more.

    Args:
        sparse_label_smoothing: share of the uniform distribution in the training targets, in [0, 1], inside the loss
            of the head's map.
        distillation_weight: the dense teacher's part in the training loss, in [0, 1]; see ``SparseTrainer``.
        suppression_weight: price of the softmax mass outside the head's support, at least 0; for a model that is to be
            decoded dense (``docs/training.md``).
        max_loss_increase: share above the dense model's loss, above 0, within which the fewest edges of attention are
            trained for; None trains for the loss alone.
        settings_learning_rate: of learned settings (alpha, temperature), above 0; None takes that of the weights.
        log_sparsity: whether support sizes and zero rates of head and attention are logged.

    Raises:
        ValueError: a number out of its range.
        TypeError: an argument of the wrong type.
    """

    sparse_label_smoothing: float = field(
        default=0.0, metadata={"help": "Mix training targets with the uniform distribution, inside the sparse loss."}
    )
    distillation_weight: float = field(
        default=0.0,
        metadata={"help": "The dense teacher's part in the training loss, in [0, 1]; 1 leaves the labels out."},
    )
    suppression_weight: float = field(
        default=0.0,
        metadata={
            "help": "The price of softmax mass outside the sparse head's support, for a model that is to be decoded "
            "dense; 0.25 in its paper."
        },
    )
    max_loss_increase: float | None = field(
        default=None,
        metadata={
            "help": "Train for the fewest edges of attention at a loss at most this share above the dense model's, as "
            "0.01 for one per cent; None trains for the loss alone."
        },
    )
    settings_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Learning rate of learned settings (alpha, temperature); None takes that of the weights."},
    )
    log_sparsity: bool = field(
        default=True, metadata={"help": "Log support sizes and zero rates of head and attention."}
    )

    def __post_init__(self) -> None:
        _check_values(self)
        super().__post_init__()

    def sparse_options(self) -> dict[str, object]:
        """The options of this class that change how a model is trained, by name, where they were set."""
        names = set(SparseTrainingArguments.__annotations__) - {"log_sparsity"}
        given = {name: getattr(self, name) for name in sorted(names)}
        return {name: value for name, value in given.items() if value != getattr(SparseTrainingArguments, name)}


def _check_values(args: SparseTrainingArguments) -> None:
    for name in ("sparse_label_smoothing", "distillation_weight"):
        check_number(name, getattr(args, name), "in [0, 1]", lambda share: 0 <= share <= 1)
    for name in ("max_loss_increase", "settings_learning_rate"):
        if getattr(args, name) is not None:
            check_number(name, getattr(args, name), "> 0, or None", lambda number: 0 < number < math.inf)
    check_number("suppression_weight", args.suppression_weight, ">= 0", lambda weight: 0 <= weight < math.inf)
    check_flag("log_sparsity", args.log_sparsity)


def check_arguments(args: Any, teacher: PreTrainedModel | None) -> None:
    """Refuse arguments that would train past the sparse loss, are out of range, or do not go together.

    Raises:
        TypeError: other training arguments than ``SparseTrainingArguments``.
        ValueError: such an argument.
    """
    if not isinstance(args, SparseTrainingArguments):
        raise TypeError(f"args must be SparseTrainingArguments, was {type(args).__name__}")
    _check_values(args)  # again: arguments can be changed
    for problem in (*_bypasses(args), *_teacher_problems(args, teacher)):
        raise ValueError(problem)


def _bypasses(args: SparseTrainingArguments) -> Iterator[str]:
    if args.label_smoothing_factor:
        yield (
            f"label_smoothing_factor={args.label_smoothing_factor} would train with dense cross-entropy; "
            "use sparse_label_smoothing"
        )
    if args.use_liger_kernel and (args.liger_kernel_config or {}).get("fused_linear_cross_entropy", True):
        yield (
            "use_liger_kernel=True would train with dense cross-entropy; leave it False, or pass "
            'liger_kernel_config={"fused_linear_cross_entropy": False, "cross_entropy": False}'
        )


def _teacher_problems(args: SparseTrainingArguments, teacher: PreTrainedModel | None) -> Iterator[str]:
    if args.suppression_weight and args.distillation_weight:
        yield (
            f"suppression_weight={args.suppression_weight} prices the classes that the labels' sparse loss rules out, "
            "which a teacher may want; set it or distillation_weight to 0"
        )
    if args.max_loss_increase is None:
        if teacher is not None and not args.distillation_weight:
            yield "a teacher is given but distillation_weight is 0; set it above 0, or set max_loss_increase"
        return
    for name in ("sparse_label_smoothing", "suppression_weight"):
        if getattr(args, name):
            yield (
                f"max_loss_increase compares the loss with the dense model's, which {name}={getattr(args, name)} "
                f"changes; set {name}=0, or max_loss_increase=None"
            )
    if args.activation_checkpointing:
        yield (
            "activation_checkpointing=True would compute the edges that max_loss_increase counts a second time, and "
            "lose their gradient; set it to False, and make batches smaller with gradient_accumulation_steps"
        )
