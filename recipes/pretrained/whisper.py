"""Whisper on synthetic speech: what its parts share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jiwer
import torch
from transformers import PreTrainedModel, WhisperProcessor
from transformers.models.whisper.english_normalizer import BasicTextNormalizer

import hf_sparse
from hf_sparse.attention.soft_edges import soft_edges

from ..lib.card import Measure
from ..lib.models import save
from ..lib.records import Figures
from .part import text_of
from .speech import Clip, batches, sentences_of, spoken_clips, transcripts

TASK = "automatic-speech-recognition"
TEXT = "synthetic speech"
ERRORS = Measure("word error rate", "rate", ".1%", "lower")
# Settings that say who says what to which model.
SPOKEN = ("source", "data", "rows", "fit_rows", "voices", "fit_voices", "noise")
FEW = 8  # clips: to calibrate on before training, and to count zeros on


def error_rate(written: list[str], heard: list[Clip]) -> float:
    """Words that are wrong, missing or too many, as a share of those that were said; case and punctuation aside."""
    plain = BasicTextNormalizer()
    return float(jiwer.wer([plain(clip.text) for clip in heard], [plain(text) for text in written]))


def dense_figures(model: PreTrainedModel, processor: WhisperProcessor, test: list[Clip]) -> Figures:
    """The word error rate of a dense model, and what it was measured on."""
    words = sum(len(clip.text.split()) for clip in test)
    return {"dense": error_rate(transcripts(model, processor, test), test), "utterances": len(test), "words": words}


def save_with_processor(model: PreTrainedModel, processor: WhisperProcessor, folder: Path) -> None:
    """Save a model as all recipes do, and what makes features of sound beside it."""
    save(model, processor.tokenizer, folder)
    processor.save_pretrained(folder / "model")


@torch.no_grad()
def zeros_of(model: PreTrainedModel, heard: list[dict[str, torch.Tensor]]) -> float:
    """Share of visible keys without weight, over the sparse attention of some clips with their sentences."""
    with soft_edges(model) as edges:
        for batch in heard:
            model(**batch)
    return 1 - edges.kept / edges.visible


def fit_and_test(settings: Any, processor: WhisperProcessor, fit_rows: int) -> tuple[list[Clip], list[Clip]]:
    """Clips to fit on, at most ``fit_rows``, and to judge on: other sentences, other voices.

    Raises:
        ValueError: no other sentence is left to fit on; see also ``sentences_of`` and ``spoken_clips``.
    """
    path, seed = Path(settings.data), settings.seed
    test = sentences_of(path, settings.rows, 1)
    judged = set(test)
    fit = [sentence for sentence in sentences_of(path, fit_rows, 0) if sentence not in judged]
    if not fit:
        raise ValueError(f"{path} has no sentences but those to judge on")
    return (
        spoken_clips(processor, fit, settings.fit_voices, settings.noise, seed),
        spoken_clips(processor, test, settings.voices, settings.noise, seed + 1),
    )


@torch.no_grad()
def supports(model: PreTrainedModel, processor: WhisperProcessor, heard: list[Clip]) -> tuple[float, float]:
    """Share of tokens that are possible, and mean number of possible classes, given the true beginning."""
    possible, classes = [], []
    for batch in batches(processor, heard):
        labels = batch["labels"][0]
        p = hf_sparse.probabilities(model, model(**batch).logits)[0, labels != -100]
        possible.append(p.gather(-1, labels[labels != -100, None])[:, 0] > 0)
        classes.append((p > 0).sum(-1))
    return float(torch.cat(possible).double().mean()), float(torch.cat(classes).double().mean())


def sentences_spoken(settings: dict[str, Any], figures: Figures) -> str:
    """The sentences that were judged on."""
    utterances = f"{figures['utterances']} sentences spoken by espeak-ng"
    return f"{text_of(settings)}: {utterances}, other than those of the calibration"
