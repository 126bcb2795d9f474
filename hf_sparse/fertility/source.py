"""Fertilities that a model works out from its source: a predictor or a table that is a part of it, saved with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForTokenClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

from ..config import SparseConfig
from ..settings import Fixed
from . import GuidedFertility
from .predictor import FertilityPredictor

# What the setting says in place of a number, and what then has to be there.
SOURCES: dict[str, type[nn.Module]] = {"predicted": FertilityPredictor, "guided": GuidedFertility}
# Beside an adapter, which is saved without its base: how to build it, and its weights.
SOURCE_FILES = ("hf_sparse_fertility.json", "hf_sparse_fertility.safetensors")
_NAME = "sparse_fertility"
_RECORD = "hf_sparse_fertility"


class SourceFertility(nn.Module):
    """The bounds of a model's cross-attention where no fertility comes with the call.

    A module, so that its weights are saved, loaded, copied and moved with those of the model. It is not trained there.

    Args:
        source: gives the bounds, ``source(input_ids, attention_mask)``.
        while_training: gives them in the place of ``source`` while the model trains; None for ``source``.

    Raises:
        TypeError: something else than a ``FertilityPredictor`` or a ``GuidedFertility``.
        ValueError: a predictor that could not be built again when the model is loaded.
    """

    def __init__(self, source: nn.Module, while_training: nn.Module | None = None) -> None:
        super().__init__()
        for role, given in (("fertility", source), ("training_fertility", while_training)):
            if given is not None and not isinstance(given, tuple(SOURCES.values())):
                raise TypeError(
                    f"{role} must be a FertilityPredictor or a GuidedFertility, was {type(given).__name__}"
                )
            _check_known(given)
        self.source = source
        self.while_training = while_training
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> SourceFertility:
        """Go with the model's mode. Frozen again: loading makes parameters anew."""
        return super().train(mode).requires_grad_(False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Bounds (batch, source), in target words a source word."""
        used = self.while_training if self.training and self.while_training is not None else self.source
        return used(input_ids, attention_mask)

    def record(self) -> dict[str, Any]:
        """Plain data that says how to build it, without its weights."""
        while_training = None if self.while_training is None else _record_of(self.while_training)
        return {"source": _record_of(self.source), "while_training": while_training}

    @classmethod
    def from_record(cls, record: Any) -> SourceFertility:
        """What ``record`` describes, with weights still to be loaded.

        Raises:
            ValueError: no such record, or a classifier of a type that Transformers does not know.
        """
        try:
            source, while_training = record["source"], record["while_training"]
            return cls(_built(**source), None if while_training is None else _built(**while_training))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a saved source of fertilities: {record!r}") from error


def _check_known(source: nn.Module | None) -> None:
    if not isinstance(source, FertilityPredictor):
        return
    model = source.model
    dense = getattr(model, "_dense_class", type(model))
    if MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING.get(type(model.config), None) is not dense:
        raise ValueError(
            f"AutoModelForTokenClassification does not build a {type(model).__name__}, so that it could not be loaded "
            "with the model; register the class, or pass fertility=predictor(...) with every call"
        )


def _record_of(source: nn.Module) -> dict[str, Any]:
    if isinstance(source, GuidedFertility):
        return {"name": "guided", "vocab_size": len(source.table)}
    config = cast(Any, source).model.config.to_dict()
    return {"name": "predicted", "config": {key: value for key, value in config.items() if key != "dtype"}}


def _built(name: str, config: dict[str, Any] | None = None, vocab_size: int = 0) -> nn.Module:
    if name == "guided":
        return GuidedFertility(torch.ones(vocab_size, device="cpu"))
    return FertilityPredictor(AutoModelForTokenClassification.from_config(AutoConfig.for_model(**cast(Any, config))))


def _asked(config: SparseConfig) -> str | None:
    """What the cross-attention of a configuration asks for: one of ``SOURCES``, or nothing.

    Raises:
        ValueError: layers that would take their fertilities from different places.
    """
    cross = [rule.map for rule in config.attn if rule.kind == "cross"]
    asked = {
        map_config.value("fertility") for map_config in cross if map_config is not None and map_config.is_constrained
    }
    words = [word for word in SOURCES if Fixed(word) in asked]
    if words and len(asked) > 1:
        raise ValueError(
            f"all constrained layers of cross-attention take their fertility from one place, these from "
            f"{', '.join(sorted(map(repr, asked)))}"
        )
    return words[0] if words else None


def source_for(model: Any, config: SparseConfig, fertility: Any, training_fertility: Any) -> SourceFertility | None:
    """What the cross-attention of a configuration needs, made of what was given to ``sparsify``.

    Raises:
        TypeError: see ``SourceFertility``.
        ValueError: nothing given though the configuration asks for it, or the other way round; layers of
            cross-attention that would take their fertilities from different places; a model that reads no token ids.
    """
    word = _asked(config)
    if word is None:
        if fertility is None and training_fertility is None:
            return None
        raise ValueError(
            'fertility is given, but no attention asks for it: attn={"cross": {..., "fertility": "predicted"}} does, '
            'or "guided"'
        )
    if model.main_input_name != "input_ids":
        raise ValueError(
            f'attn: fertility="{word}" is worked out from token ids, and {type(model).__name__} takes '
            f'{model.main_input_name!r}; use "given"'
        )
    if not isinstance(fertility, SOURCES[word]):
        was = "none was given" if fertility is None else f"was {type(fertility).__name__}"
        raise ValueError(
            f'attn: fertility="{word}" needs a {SOURCES[word].__name__}, as in sparsify(model, attn, fertility=...); '
            f"{was}"
        )
    return SourceFertility(fertility, training_fertility)


def keep_source(model: Any, source: SourceFertility | None) -> None:
    """Make ``source`` a part of ``model`` and say so in its configuration; None takes away what is there.

    It goes into the base model, whose weights keep their names whether they are loaded alone or in a whole, and takes
    the model's dtype, in which a checkpoint is loaded: the bounds are the same before and after.
    """
    drop_source(model)
    model.config.__dict__.pop(_RECORD, None)
    if source is not None:
        model.base_model.add_module(_NAME, source.to(model.device, model.dtype).train(model.training))
        setattr(model.config, _RECORD, source.record())


def drop_source(model: Any) -> None:
    """Take the source of fertilities out of a model, if it has one, and leave its configuration as it is."""
    if source_of(model) is not None:
        delattr(model.base_model, _NAME)


def source_of(model: Any) -> SourceFertility | None:
    """The source of fertilities that a model keeps, if any."""
    return getattr(model.base_model, _NAME, None)


def saved_source(model_config: Any, config: SparseConfig) -> SourceFertility | None:
    """The source of fertilities that a model's configuration tells of, with weights still to be loaded.

    Raises:
        ValueError: see ``SourceFertility.from_record``; or none, though the attention asks for it.
    """
    record, word = model_config.__dict__.get(_RECORD), _asked(config)
    if word is not None and record is None:
        raise ValueError(f'the saved attention has fertility="{word}", but its configuration tells of no {_RECORD}')
    return None if record is None else SourceFertility.from_record(record)


def source_bounds(model: Any, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
    """Bounds (batch, source) for a batch of token ids by what the model keeps; None without ids, or without that."""
    source = source_of(model)
    return None if source is None or input_ids is None else source(input_ids, attention_mask)


def save_source(model: Any, folder: Path) -> None:
    """Write the source of fertilities that a model keeps, if any, into ``folder``."""
    source = source_of(model)
    if source is not None:
        record, weights = SOURCE_FILES
        (folder / record).write_text(json.dumps(source.record(), indent=2) + "\n", encoding="utf-8")
        save_file({name: value.contiguous() for name, value in source.state_dict().items()}, folder / weights)


def load_source(record: str | None, weights: str | None) -> SourceFertility | None:
    """Read the two files that ``save_source`` wrote; None where there are none."""
    if record is None or weights is None:
        return None
    source = SourceFertility.from_record(json.loads(Path(record).read_text(encoding="utf-8")))
    source.load_state_dict(load_file(weights))
    return source
