"""Whisper with sparse attention, calibrated: word error rates."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hf_sparse

from ..lib.models import config_of
from ..lib.records import Figures, Record
from .part import WAYS, ZEROS, Cells, Description, Part, Verdict, how
from .speech import batches, load_whisper, transcripts
from .whisper import (
    ERRORS,
    FEW,
    SPOKEN,
    TASK,
    TEXT,
    dense_figures,
    error_rate,
    fit_and_test,
    save_with_processor,
    sentences_spoken,
    zeros_of,
)


def attention(settings: Any, folder: Path) -> Figures:
    """Word error rate with dense, swapped and calibrated attention of some kinds."""
    model, processor = load_whisper(settings.source)
    fit, test = fit_and_test(settings, processor, settings.fit_rows)
    batch = batches(processor, fit)
    figures = dense_figures(model, processor, test)
    hf_sparse.sparsify(model, attn=dict.fromkeys(settings.kinds, settings.map), example=batch[0])
    figures["swapped"] = error_rate(transcripts(model, processor, test), test)
    print(figures, flush=True)
    start = time.process_time()
    hf_sparse.calibrate(model, batch, edges=settings.edges or None, progress=False)
    figures["calibration_cpu_seconds"] = round(time.process_time() - start, 1)
    figures["calibrated"] = error_rate(transcripts(model, processor, test), test)
    figures["zeros"] = zeros_of(model, batches(processor, test[:FEW]))
    save_with_processor(model, processor, folder)
    return {**figures, "config": config_of(model)}


def _cells(settings: dict[str, Any], figures: Figures) -> Cells:
    rates = [f"WER {figures[way]:.1%}" for way in WAYS]
    return [f"{' and '.join(settings['kinds'])} attention", how(settings), f"{figures['zeros']:.1%}", *rates]


def _ways(figures: Figures) -> dict[str, dict[str, Any]]:
    zeros = {"dense": 0.0, "swapped": None, "calibrated": figures["zeros"]}
    return {way: {"rate": figures[way], "zeros": zeros[way]} for way in WAYS}


def _verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    for record in records:
        figures, kinds = record["figures"], " and ".join(record["settings"]["kinds"])
        more = figures["calibrated"] - figures["dense"]
        aim = f"Whisper, {kinds} attention: word error rate within one point"
        yield Verdict(aim, f"{more:+.1%}", more < 0.01 + 1e-9)


PART = Part(
    name="speech",
    run=attention,
    reads=(*SPOKEN, "kinds", "map", "edges"),
    text=TEXT,
    cells=_cells,
    description=Description(TASK, (ERRORS, ZEROS), _ways, data=sentences_spoken),
    verdicts=_verdicts,
)
