"""Whisper with all of its attention and its head sparse, trained beside the dense model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

import hf_sparse

from ..lib.card import Measure
from ..lib.models import config_of
from ..lib.records import Figures, Record
from ..lib.training import DenseTrainer
from .part import ZEROS, Cells, Description, Part, Verdict, how
from .speech import batches, load_whisper, transcripts
from .trained import TRAINING, arguments
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
    supports,
    zeros_of,
)


def trained(settings: Any, folder: Path) -> Figures:
    """All attention and the head sparse, trained with as many clips as a dense model: word error rates of both."""
    dense, processor = load_whisper(settings.source)
    fit, test = fit_and_test(settings, processor, settings.fit_rows)
    batch = batches(processor, fit)
    figures = dense_figures(dense, processor, test)
    model = copy.deepcopy(dense)
    attn = dict.fromkeys(("encoder", "decoder", "cross"), settings.map)
    hf_sparse.sparsify(model, attn=attn, head=settings.map, example=batch[0])
    hf_sparse.calibrate(model, batch[:FEW], edges=settings.edges or None, progress=False)
    figures["calibrated"] = error_rate(transcripts(model, processor, test), test)
    figures["calibrated_possible"], figures["calibrated_classes"] = supports(model, processor, test)
    print(figures, flush=True)
    options = arguments(settings, folder, remove_unused_columns=False)
    for each, trainer in ((dense, DenseTrainer), (model, hf_sparse.SparseTrainer)):
        trainer(each, options, train_dataset=batch, data_collator=_collated).train()
        each.eval()
    figures["continued"] = error_rate(transcripts(dense, processor, test), test)
    figures["trained"] = error_rate(transcripts(model, processor, test), test)
    figures["possible"], figures["classes"] = supports(model, processor, test)
    figures["zeros"] = zeros_of(model, batches(processor, test[:FEW]))
    print(figures, flush=True)
    save_with_processor(model, processor, folder)
    return {**figures, "config": config_of(model)}


def _collated(clips: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Clips in one batch; what follows a sentence has no label, whatever token it is."""
    padded = {
        name: pad_sequence([clip[name][0] for clip in clips], batch_first=True, padding_value=value)
        for name, value in (("decoder_input_ids", 0), ("labels", -100))
    }
    return {"input_features": torch.cat([clip["input_features"] for clip in clips]), **padded}


def _cells(settings: dict[str, Any], figures: Figures) -> Cells:
    after = f"after {settings['steps']} steps"
    found = f"WER {figures['trained']:.1%} {after}, {figures['possible']:.1%} of the tokens possible"
    return [
        "all attention and the head",
        f'`head="{settings["map"]}"`, {how(settings)}, `SparseTrainer`',
        f"{figures['zeros']:.1%}",
        f"WER {figures['continued']:.1%} {after}",
        "-",
        found,
    ]


def _ways(figures: Figures) -> dict[str, dict[str, Any]]:
    return {
        "dense": {"rate": figures["dense"], "possible": 1.0, "zeros": 0.0},
        "continued": {"rate": figures["continued"], "possible": 1.0, "zeros": 0.0},
        "calibrated": {"rate": figures["calibrated"], "possible": figures["calibrated_possible"], "zeros": None},
        "trained": {"rate": figures["trained"], "possible": figures["possible"], "zeros": figures["zeros"]},
    }


def _fitted(settings: dict[str, Any], figures: Figures) -> str:
    return (
        "Temperatures and alphas were fitted to the dense model; then all weights were trained, beside a dense "
        f"model, for {settings['steps']} steps of {settings['batch_size']} clips."
    )


def _verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    for record in records:
        figures = record["figures"]
        more = figures["trained"] - figures["continued"]
        yield Verdict(
            "Whisper, all attention and head, trained: word error rate within one point of dense trained alike, 98 % "
            "of the tokens possible",
            f"{more:+.1%}, {figures['possible']:.1%}",
            more < 0.01 + 1e-9 and figures["possible"] >= 0.98,
        )


PART = Part(
    name="speech_trained",
    run=trained,
    reads=(*SPOKEN, *TRAINING, "map", "edges"),
    text=TEXT,
    cells=_cells,
    description=Description(
        TASK,
        (ERRORS, Measure("support holds the token", "possible", ".1%", "higher"), ZEROS),
        _ways,
        place="in all attention and at its head",
        fitted=_fitted,
        data=sentences_spoken,
    ),
    verdicts=_verdicts,
)
