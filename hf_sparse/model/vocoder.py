"""Speech from spectrograms: the pipeline gives a vocoder to the exact classes of a table, not to a sparse one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING

from .patch import Patch
from .sparse_model import SparseModel


def _init(original: Callable[..., None], self: Any, model: Any, *args: object, **kwargs: object) -> None:
    entries = MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING._extra_content
    makes_spectrograms = (
        isinstance(model, SparseModel) and type(model)._dense_class in MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING.values()
    )
    if makes_spectrograms:
        entries[type(model)] = type(model)
    try:
        original(self, model, *args, **kwargs)
    finally:
        if makes_spectrograms:
            entries.pop(type(model), None)  # another thread may have taken it


OF_SPEECH = (
    Patch(
        "transformers.pipelines.text_to_audio:TextToAudioPipeline",
        "__init__",
        _init,
        reason="A sparse model that makes spectrograms would have no vocoder, and they would be returned as sound.",
        after="transformers.pipelines.text_to_audio",
    ),
)
