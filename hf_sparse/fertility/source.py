"""Fertilities that a model computes from its source: a predictor or a table that is part of it and saved with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

from ..config import SparseConfig
from ..config.settings import Fixed, SettingValue
from ..functional.bounds import SOURCE_WORDS
from .guided import GuidedFertility
from .predictor import FertilityPredictor

FertilitySource: TypeAlias = "FertilityPredictor | GuidedFertility"

# The class that each word for a source needs.
SOURCES: dict[str, type[FertilityPredictor] | type[GuidedFertility]] = dict(
    zip(SOURCE_WORDS, (FertilityPredictor, GuidedFertility), strict=True)
)
# Saved beside an adapter, whose base is not saved with it: the record of the source, and its weights.
SOURCE_FILES = ("hf_sparse_fertility.json", "hf_sparse_fertility.safetensors")
_NAME = "sparse_fertility"
_RECORD = "hf_sparse_fertility"


class SourceFertility(nn.Module):
    """The bounds of a model's cross-attention for calls that bring no fertility.

    A module, so that its weights are saved, loaded, copied and moved with those of the model. It is never trained.

    Args:
        source: computes the bounds, ``source(input_ids, attention_mask)``.
        while_training: replaces ``source`` while the model trains; None for ``source``.

    Raises:
        TypeError: something else than a ``FertilityPredictor`` or a ``GuidedFertility``.
        ValueError: a predictor that could not be built again when the model is loaded.
    """

    def __init__(self, source: FertilitySource, while_training: FertilitySource | None = None) -> None:
        super().__init__()
        for role, given in (("fertility", source), ("training_fertility", while_training)):
            if given is not None and not isinstance(given, tuple(SOURCES.values())):
                raise TypeError(
                    f"{role} must be a FertilityPredictor or a GuidedFertility, was {type(given).__name__}"
                )
            if isinstance(given, FertilityPredictor):
                _check_rebuildable(given.model)
        self.source = source
        self.while_training = while_training
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> SourceFertility:
        """Follow the model's mode, and freeze again: loading creates new parameters."""
        return super().train(mode).requires_grad_(False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Bounds (batch, source), in target words per source word."""
        used = self.while_training if self.training and self.while_training is not None else self.source
        return used(input_ids, attention_mask)

    def record(self) -> dict[str, dict[str, object] | None]:
        """Plain data from which ``from_record`` builds it again, without its weights."""
        while_training = None if self.while_training is None else _record_of(self.while_training)
        return {"source": _record_of(self.source), "while_training": while_training}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> SourceFertility:
        """Build it from ``record``, with weights still to be loaded.

        Raises:
            ValueError: not such a record, or a classifier of a type that Transformers does not know.
        """
        try:
            source, while_training = record["source"], record["while_training"]
            return cls(_build(source), None if while_training is None else _build(while_training))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a saved source of fertilities: {record!r}") from error


def _check_rebuildable(model: PreTrainedModel) -> None:
    """Raise ValueError unless Transformers builds a classifier of the same class from its configuration."""
    dense = getattr(model, "_dense_class", type(model))
    if MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING.get(type(model.config), None) is not dense:
        raise ValueError(
            f"AutoModelForTokenClassification does not build a {type(model).__name__}, so that it could not be loaded "
            "with the model; register the class, or pass fertility=predictor(...) with every call"
        )


def _record_of(source: FertilitySource) -> dict[str, object]:
    name = next(name for name, known in SOURCES.items() if isinstance(source, known))
    return {"name": name, **source.record()}


def _build(record: dict[str, Any]) -> FertilitySource:
    return SOURCES[record["name"]].from_record(**{key: value for key, value in record.items() if key != "name"})


def _needed_source(config: SparseConfig) -> str | None:
    """The source that the cross-attention of a configuration needs: a word of ``SOURCES``, or None.

    Raises:
        ValueError: layers that would take their fertilities from different places.
    """
    asked = _fertilities(config)
    words = [word for word in SOURCES if Fixed(word) in asked]
    if words and len(asked) > 1:
        raise ValueError(
            f"all constrained layers of cross-attention take their fertility from one place, these from "
            f"{', '.join(sorted(map(repr, asked)))}"
        )
    return words[0] if words else None


def _fertilities(config: SparseConfig) -> set[SettingValue]:
    """The fertilities of all constrained layers of cross-attention."""
    maps = [rule.map for rule in config.attn if rule.kind == "cross" and rule.map is not None]
    return {map_config.value("fertility") for map_config in maps if map_config.is_constrained}


def source_for(
    model: PreTrainedModel, config: SparseConfig, fertility: nn.Module | None, training_fertility: nn.Module | None
) -> SourceFertility | None:
    """The source that the cross-attention of a configuration needs, from the arguments of ``sparsify``.

    Raises:
        TypeError: see ``SourceFertility``.
        ValueError: no fertility though the configuration needs one, or the other way round; layers of cross-attention
            that would take their fertilities from different places; a model that reads no token ids.
    """
    word = _needed_source(config)
    if word is None:
        if fertility is None and training_fertility is None:
            return None
        given = "fertility" if fertility is not None else "training_fertility"
        raise ValueError(
            f'{given} is given, but no attention asks for it: attn={{"cross": {{..., "fertility": "predicted"}}}} '
            'does, or "guided"'
        )
    if model.main_input_name != "input_ids":
        raise ValueError(
            f'attn: fertility="{word}" is computed from token ids, and {type(model).__name__} takes '
            f'{model.main_input_name!r}; use "given"'
        )
    if not isinstance(fertility, SOURCES[word]):
        was = "none was given" if fertility is None else f"was {type(fertility).__name__}"
        raise ValueError(
            f'attn: fertility="{word}" needs a {SOURCES[word].__name__}, as in sparsify(model, attn, fertility=...); '
            f"{was}"
        )
    return SourceFertility(fertility, cast("FertilitySource | None", training_fertility))


def keep_source(model: PreTrainedModel, source: SourceFertility | None) -> None:
    """Make ``source`` a part of ``model`` and record it in the configuration; None removes both.

    It becomes a part of the base model, whose weights have the same names when loaded alone, and takes the model's
    dtype, in which a checkpoint is loaded: saving and loading do not change the bounds.
    """
    drop_source(model)
    model.config.__dict__.pop(_RECORD, None)
    if source is not None:
        model.base_model.add_module(_NAME, source.to(model.device, model.dtype).train(model.training))
        setattr(model.config, _RECORD, source.record())


def drop_source(model: PreTrainedModel) -> None:
    """Remove the source of fertilities from a model, if it has one, but not from its configuration."""
    if source_of(model) is not None:
        delattr(model.base_model, _NAME)


def source_of(model: PreTrainedModel) -> SourceFertility | None:
    """The source of fertilities in a model; None where it has none."""
    return getattr(model.base_model, _NAME, None)


def saved_source(model_config: PreTrainedConfig, config: SparseConfig) -> SourceFertility | None:
    """The source of fertilities recorded in a model's configuration, with weights still to be loaded.

    Raises:
        ValueError: see ``SourceFertility.from_record``; or no record, though the attention needs a source.
    """
    record, word = model_config.__dict__.get(_RECORD), _needed_source(config)
    if word is not None and record is None:
        raise ValueError(f'the saved attention has fertility="{word}", but its configuration has no {_RECORD}')
    return None if record is None else SourceFertility.from_record(record)


def source_bounds(model: PreTrainedModel, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
    """Bounds (batch, source) by the source of fertilities in a model; None without token ids or without a source."""
    source = source_of(model)
    return None if source is None or input_ids is None else source(input_ids, attention_mask)


def save_source(model: PreTrainedModel, folder: Path) -> None:
    """Write the source of fertilities of a model, if it has one, into ``folder``."""
    source = source_of(model)
    if source is not None:
        record, weights = SOURCE_FILES
        (folder / record).write_text(json.dumps(source.record(), indent=2) + "\n", encoding="utf-8")
        save_file({name: value.contiguous() for name, value in source.state_dict().items()}, folder / weights)


def load_source(config: SparseConfig, record: str | None, weights: str | None) -> SourceFertility | None:
    """Read the source that settings need from the two files that ``save_source`` wrote; None where they need none.

    Files of an adapter that needed one may lie in the folder of another, which took its place.
    """
    if _needed_source(config) is None or record is None or weights is None:
        return None
    source = SourceFertility.from_record(json.loads(Path(record).read_text(encoding="utf-8")))
    source.load_state_dict(load_file(weights), assign=True)  # in the dtype that was saved, not torch's default
    return source
