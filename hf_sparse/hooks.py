"""All that this package changes in other libraries, in ``PATCHES``; dense models stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel

from .attention.find import through_interface
from .attention.interface import NAME, sparse_attention
from .attention.mask import pattern_mask
from .hub import attach_as_saved, check_kinds, check_loaded
from .model.accelerate_states import OF_STATES
from .model.beam_record import draw_allowed_continuations, end_possible_strings, recorded_beam_search
from .model.continuous import OF_BATCHING
from .model.divided_sequences import OF_ACCELERATE
from .model.find import check_parts
from .model.foreign_files import OF_FOREIGN_FILES
from .model.logits_guard import OF_HARNESS, OF_SENTENCE_TRANSFORMERS
from .model.patch import Patch, Registration, forget_imports, install_all
from .model.peft_guard import OF_PEFT, drop_adapter_settings
from .model.saved_config import block_of, check_adapter, to_marked_dict
from .model.seal import read_sealed, write_sealed
from .model.state import state_of
from .model.trainer_guard import OF_TRAINER
from .model.trl_guard import OF_TRL
from .model.vocoder import OF_SPEECH

__all__ = ["PATCHES", "install", "uninstall"]


def _post_init(original: Callable[..., None], self: PreTrainedModel) -> None:
    original(self)
    attach_as_saved(self)


def _from_pretrained(
    original: Callable[..., Any],
    cls: Any,
    pretrained_model_name_or_path: Any,
    *args: object,
    config: Any = None,
    **kwargs: Any,
) -> Any:
    loaded = original(cls, pretrained_model_name_or_path, *args, config=config, **kwargs)
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    check_kinds(model)
    if config is not None:  # else it is the checkpoint's own
        check_loaded(model, pretrained_model_name_or_path, kwargs)
    return loaded


def _check_and_adjust_attn_implementation(
    original: Callable[..., str],
    self: PreTrainedModel,
    attn_implementation: str | None,
    is_init_check: bool = False,
    *args: object,
    **kwargs: object,
) -> str:
    if is_init_check and attn_implementation is None and (block_of(self.config) or {}).get("attn"):
        attn_implementation = NAME  # None means what the checkpoint has, as in scripts that pass their default on
    if is_init_check and attn_implementation == NAME and not through_interface(cast(Any, type(self))):
        attn_implementation = None
    return original(self, attn_implementation, is_init_check, *args, **kwargs)


def _load_adapter(
    original: Callable[..., Any],
    self: PreTrainedModel,
    peft_model_id: str | None = None,
    *args: object,
    **kwargs: Any,
) -> Any:
    check_adapter(self, peft_model_id, kwargs.get("adapter_kwargs") or {})
    return original(self, peft_model_id, *args, **kwargs)


def _save_pretrained(
    original: Callable[..., None], self: PreTrainedModel, save_directory: Any, *args: object, **kwargs: Any
) -> None:
    check_parts(self)
    original(self, save_directory, *args, **kwargs)
    is_main = kwargs.get("is_main_process", args[0] if args else True)
    if is_main and state_of(self) is None and getattr(self, "_hf_peft_config_loaded", False):
        drop_adapter_settings(Path(save_directory))


PATCHES: tuple[Patch | Registration, ...] = (
    Registration(
        "transformers:AttentionInterface",
        NAME,
        sparse_attention,
        reason="Attention modules that ask Transformers for an implementation by name find the sparse one.",
    ),
    Registration(
        "transformers:AttentionMaskInterface",
        NAME,
        pattern_mask,
        reason="Without a mask function of the same name models would be called with no mask at all: no causality, no "
        "padding.",
    ),
    Patch(
        "transformers:PreTrainedModel",
        "post_init",
        _post_init,
        reason="Every way of building a model passes through it before weights are loaded: sparse checkpoints come "
        "back sparse.",
    ),
    Patch(
        "transformers:PreTrainedModel",
        "from_pretrained",
        _from_pretrained,
        reason="With config=... the configuration of a checkpoint is not read, and a sparse one would come back "
        "dense; so would a part without the kind of attention that it has in the whole.",
    ),
    Patch(
        "transformers:PreTrainedModel",
        "_check_and_adjust_attn_implementation",
        _check_and_adjust_attn_implementation,
        reason="Models whose files list the attention they can be built with are not asked for ours by name, and a "
        "sparse checkpoint that is loaded with attn_implementation=None is.",
    ),
    Patch(
        "transformers:PreTrainedModel",
        "load_adapter",
        _load_adapter,
        reason="An adapter that was trained in a sparse model is not loaded into another.",
    ),
    Patch(
        "transformers:PreTrainedModel",
        "save_pretrained",
        _save_pretrained,
        reason="A model with a part that is sparse by itself would be saved as a dense one, and an adapter of a dense "
        "model beside the settings of a sparse one that it replaces.",
    ),
    Patch(
        "transformers:PreTrainedConfig",
        "to_dict",
        to_marked_dict,
        reason="A sparse model's configuration names an attention that stock Transformers does not have and refuses, "
        "in files that others write from it, too.",
    ),
    Patch(
        "transformers:PreTrainedConfig",
        "to_json_file",
        write_sealed,
        reason="A sparse checkpoint is refused, with this package's name, by all that opens it without this package.",
    ),
    Patch(
        "transformers:PreTrainedConfig",
        "_dict_from_json_file",
        read_sealed,
        reason="With this package it opens.",
    ),
    Patch(
        "transformers:GenerationMixin",
        "_beam_search",
        recorded_beam_search,
        reason="Its output does not say which tokens ended a string, without which beam_certificate would prove what "
        "is false.",
    ),
    Patch(
        "transformers:GenerationMixin",
        "_get_top_k_continuations",
        draw_allowed_continuations,
        reason="Beam search that samples would take forbidden tokens as soon as allowed ones of probability zero.",
    ),
    Patch(
        "transformers:GenerationMixin",
        "_update_finished_beams",
        end_possible_strings,
        reason="With early_stopping=True a beam search over sparse distributions would stop at strings of probability "
        "zero.",
    ),
    *OF_ACCELERATE,
    *OF_STATES,
    *OF_BATCHING,
    *OF_SPEECH,
    *OF_TRAINER,
    *OF_PEFT,
    *OF_TRL,
    *OF_HARNESS,
    *OF_SENTENCE_TRANSFORMERS,
    *OF_FOREIGN_FILES,
)


def install() -> None:
    """Install every patch, those of modules that nobody has imported yet at the end of their import."""
    install_all(PATCHES)


def uninstall() -> None:
    """Undo all of it, late patches too."""
    forget_imports()
    for patch in PATCHES:
        patch.uninstall()
