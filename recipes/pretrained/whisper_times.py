"""Times of words by Whisper's sparse cross-attention."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, WhisperProcessor, pipeline
from transformers.models.whisper.english_normalizer import BasicTextNormalizer

import hf_sparse
from hf_sparse.attention.soft_edges import soft_edges

from ..lib.records import Figures, Record
from .part import WAYS, Cells, Part, Verdict, how
from .speech import PROMPT, RATE, Clip, batches, load_whisper, word_by_word
from .whisper import SPOKEN, fit_and_test


def times(settings: Any, folder: Path) -> Figures:
    """Where words begin, by dense cross-attention and by sparse: the mean distance from where they were put."""
    dense, processor = load_whisper(settings.source)
    fit, test = fit_and_test(settings, processor, settings.fit_rows)
    said = [word_by_word(clip.text, settings.voices[0]) for clip in test]
    figures: Figures = {"dense": _time_errors(dense, processor, said, test), "utterances": len(test)}
    model = copy.deepcopy(dense)
    batch = batches(processor, fit)
    hf_sparse.sparsify(model, attn={"cross": settings.map}, example=batch[0])
    figures["swapped"] = _time_errors(model, processor, said, test)
    hf_sparse.calibrate(model, batch, edges=settings.edges or None, progress=False)
    with soft_edges(model) as edges:
        figures["calibrated"] = _time_errors(model, processor, said, test)
    figures["zeros"] = 1 - edges.kept / edges.visible
    return figures


def _time_errors(
    model: PreTrainedModel, processor: WhisperProcessor, said: list[tuple[np.ndarray, list[float]]], heard: list[Clip]
) -> dict[str, float]:
    """Mean error in seconds over the words that were heard as they were said, and the number of these."""
    listen = pipeline(
        "automatic-speech-recognition",
        model=model,
        tokenizer=processor.tokenizer,
        feature_extractor=processor.feature_extractor,
    )
    plain, errors = BasicTextNormalizer(), []
    for (sound, starts), clip in zip(said, heard):
        input = {"raw": sound, "sampling_rate": RATE}
        chunks = listen(input, return_timestamps="word", generate_kwargs={**PROMPT, "max_new_tokens": 60})["chunks"]
        words = [plain(word).strip() for word in clip.text.split()]
        found = [plain(chunk["text"]).strip() for chunk in chunks]
        for block in SequenceMatcher(None, words, found, autojunk=False).get_matching_blocks():
            for i in range(block.size):
                errors.append(abs(chunks[block.b + i]["timestamp"][0] - starts[block.a + i]))
    print(type(model).__name__, sum(errors) / len(errors), len(errors), flush=True)
    return {"seconds": sum(errors) / len(errors), "words": len(errors)}


def _cells(settings: dict[str, Any], figures: Figures) -> Cells:
    errors = [f"words begin {figures[way]['seconds']:.2f} s away" for way in WAYS]
    return ["cross-attention", how(settings), f"{figures['zeros']:.1%}", *errors]


def _verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    for record in records:
        own, dense = (record["figures"][way]["seconds"] for way in ("calibrated", "dense"))
        aim = "Whisper, times of words: mean error no larger than that of dense cross-attention"
        yield Verdict(aim, f"{own:.2f} s, dense {dense:.2f} s", own <= dense)


PART = Part(
    name="speech_times",
    run=times,
    reads=(*SPOKEN, "map", "edges"),
    text="words spoken one by one",
    cells=_cells,
    verdicts=_verdicts,
)
