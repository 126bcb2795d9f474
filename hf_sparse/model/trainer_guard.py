"""The stock ``Trainer`` beside sparse models: a loss or a resumed run that would be of another model is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import CONFIG_NAME

from ..config import SparseConfig
from .find import check_parts, described, sparse_models, sparse_state
from .logits_guard import prediction_step, training_step
from .model_card import update_card
from .patch import Patch
from .saved_config import ADAPTER_SETTINGS, BLOCK, AdapterSettings
from .state import inside_peft, state_of


def _evaluation_loop(original: Callable[..., Any], self: Any, *args: object, **kwargs: object) -> Any:
    heads = [sparse_state(model).config.head for model in sparse_models(self.model)]
    if self.label_smoother is not None and any(heads):
        raise ValueError(
            f"label_smoothing_factor={self.args.label_smoothing_factor} would report a dense loss for a sparse "
            "head; leave it 0 where you evaluate, and train with SparseTrainer and sparse_label_smoothing"
        )
    _check_reference(self)
    return original(self, *args, **kwargs)


def _train(original: Callable[..., Any], self: Any, *args: object, **kwargs: object) -> Any:
    model = inside_peft(self.model)
    if isinstance(model, PreTrainedModel):
        check_parts(model)
    _check_options(self)
    _check_reference(self)
    for each in sparse_models(self.model):
        sparse_state(each).metrics.pop("head_coverage", None)  # what calibration promised holds until training
    return original(self, *args, **kwargs)


def _check_options(trainer: Any) -> None:
    """Refuse options of ``SparseTrainingArguments`` that are set for a trainer which does not read them."""
    if getattr(trainer, "reads_sparse_options", False):
        return
    for name, value in getattr(trainer.args, "sparse_options", dict)().items():
        raise ValueError(
            f"{name}={value} is read by SparseTrainer and SparseSeq2SeqTrainer alone, and {type(trainer).__name__} "
            "would train without it: train with one of them, or leave it out"
        )


def _check_reference(trainer: Any) -> None:
    """Refuse a reference under other maps: at the first step policy and reference must agree."""
    # The teacher of trainers that distil a model into itself is that model, loaded once more.
    name = "teacher_model" if hasattr(trainer.args, "teacher_model_kind") else "ref_model"
    reference, state = getattr(trainer, name, None), state_of(trainer.model)
    if reference is None or state is None or _changes_maps(trainer):
        return
    of_reference = state_of(trainer.accelerator.unwrap_model(reference))
    if of_reference is None or of_reference.config.maps != state.config.maps:
        raise ValueError(
            f"the reference model {described(of_reference)}, and this {type(trainer.model).__name__} "
            f"{described(state)}: references are loaded from where the model was; save the sparse model, and give the "
            "trainer that path"
        )


def _changes_maps(trainer: Any) -> bool:
    return any(getattr(callback, "changes_maps", False) for callback in trainer.callback_handler.callbacks)


def _load_from_checkpoint(
    original: Callable[..., None], self: Any, resume_from_checkpoint: str, *args: object, **kwargs: object
) -> None:
    trained = _trained_settings(Path(resume_from_checkpoint))
    state = state_of(self.model)
    if trained is not None and not _changes_maps(self) and (state is None or state.config.maps != trained.maps):
        raise ValueError(
            f"{resume_from_checkpoint} was trained with {trained.to_dict()}, and this {type(self.model).__name__} "
            f"{described(state)}: give the trainer hf_sparse.from_pretrained(checkpoint), with is_trainable=True "
            "for an adapter, or begin a new run"
        )
    if trained is None or state is None:
        return original(self, resume_from_checkpoint, *args, **kwargs)
    # An adapter is loaded under the maps it was saved under alone. The callback that changes them sets them next.
    with state.replaced(attn=trained.attn, head=trained.head):
        original(self, resume_from_checkpoint, *args, **kwargs)


def create_model_card(original: Callable[..., None], self: Any, *args: object, **kwargs: object) -> None:
    """A trainer's own card, with the section on maps and measured sparsity."""
    original(self, *args, **kwargs)
    state = state_of(self.model)
    if state is not None and self.is_world_process_zero():
        update_card(self.args.output_dir, state.config, state.metrics)


def _trained_settings(checkpoint: Path) -> SparseConfig | None:
    """The settings of the model that a checkpoint was saved from; None where it was dense, or says nothing."""
    config, adapter = checkpoint / CONFIG_NAME, checkpoint / ADAPTER_SETTINGS
    block = json.loads(config.read_text(encoding="utf-8")).get(BLOCK) if config.exists() else None
    if block is None:
        return AdapterSettings.read(adapter).config if adapter.exists() else None
    return SparseConfig.from_dict(block)


OF_TRAINER = (
    Patch(
        "transformers:Trainer",
        "train",
        _train,
        reason="A model with a part that is sparse by itself would be trained on a dense loss, and not be saved; "
        "trainers with a reference model load a dense one where the model was made sparse after loading; options of "
        "SparseTrainingArguments would be ignored.",
        after="transformers.trainer",
    ),
    Patch(
        "transformers:Trainer",
        "evaluation_loop",
        _evaluation_loop,
        reason="Its label smoothing is that of softmax. In training the model notices that the labels were taken "
        "away; in evaluation nothing tells it.",
        after="transformers.trainer",
    ),
    Patch(
        "transformers:Trainer",
        "training_step",
        training_step,
        reason="A compute_loss that passes labels and compares the logits with a teacher's would train softmax of the "
        "raw scores, and be evaluated by log-probabilities.",
        after="transformers.trainer",
    ),
    Patch(
        "transformers:Trainer",
        "prediction_step",
        prediction_step,
        reason="Metrics and predict read the logits beside the loss, and take their softmax.",
        after="transformers.trainer",
    ),
    Patch(
        "transformers:Trainer",
        "_load_from_checkpoint",
        _load_from_checkpoint,
        reason="Weights that were trained under other maps are not brought back into a model.",
        after="transformers.trainer",
    ),
    Patch(
        "transformers:Trainer",
        "create_model_card",
        create_model_card,
        reason="Its card takes the place of the one that was saved with the model, whose section says how to load it.",
        after="transformers.trainer",
    ),
)
