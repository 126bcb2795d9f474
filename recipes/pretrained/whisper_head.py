"""Whisper with a sparse head: what its supports hold, and transcripts proved likeliest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

import hf_sparse

from ..lib.card import Measure
from ..lib.models import config_of
from ..lib.records import Figures, Record
from .part import Cells, Description, Part, Verdict, how_head
from .speech import PROMPT, Clip, batches, load_whisper
from .whisper import SPOKEN, TASK, TEXT, fit_and_test, save_with_processor, sentences_spoken, supports


def head(settings: Any, folder: Path) -> Figures:
    """Heads with a goal: a promised coverage, or few classes. What they hold, and transcripts proved likeliest."""
    model, processor = load_whisper(settings.source)
    fit, test = fit_and_test(settings, processor, settings.fit_rows)
    batch, proved = batches(processor, fit), test[: settings.proofs]
    hf_sparse.sparsify(model, head="entmax15", example=batch[0])
    figures: Figures = {"asked": settings.coverage[-1], "utterances": len(test), "proof_utterances": len(proved)}
    for goal in ({"coverage": settings.coverage[-1]}, {"classes": settings.proof_classes}):
        hf_sparse.calibrate(model, batch, **goal, progress=False)
        possible, classes = supports(model, processor, test)
        proofs = {name: _proofs(way, model, proved) for name, way in WAYS.items()}
        figures["".join(goal)] = {"found": possible, "support": classes, "proofs": proofs}
        print(figures, flush=True)
    save_with_processor(model, processor, folder)
    return {**figures, "config": config_of(model)}


def _greedy(model: Any, features: torch.Tensor) -> bool:
    """Whether the greedy transcript is the one that search proves likeliest."""
    greedy = model.generate(input_features=features, **PROMPT, max_new_tokens=60, return_dict_in_generate=True)
    (found,) = hf_sparse.exact_search(model, {"input_features": features}, max_new_tokens=60, **PROMPT)
    tokens = greedy.sequences[0].tolist()
    best = list(found.best.tokens)
    return found.certificate is not None and tokens[len(tokens) - len(best) :] == best


def _beams(model: Any, features: torch.Tensor) -> bool:
    """Whether five beams are proved to have found the likeliest transcript."""
    options = {"num_beams": 5, "max_new_tokens": 60, "return_dict_in_generate": True, "output_scores": True}
    output = model.generate(input_features=features, **PROMPT, **options)
    (found,) = hf_sparse.beam_certificate(model, output, 5)
    return found.certificate is not None


def _search(model: Any, features: torch.Tensor) -> bool:
    """Whether exact search proves its transcript."""
    (found,) = hf_sparse.exact_search(model, {"input_features": features}, max_new_tokens=60, **PROMPT)
    return found.certificate is not None


WAYS = {"greedy": _greedy, "beam 5": _beams, "exact_search": _search}


def _proofs(way: Any, model: PreTrainedModel, heard: list[Clip]) -> dict[str, float]:
    """Share of utterances whose transcript is proved likeliest, and CPU seconds for one."""
    start = time.process_time()
    proved = [way(model, clip.features) for clip in heard]
    seconds = (time.process_time() - start) / len(heard)
    print(way.__name__, proved, seconds, flush=True)
    return {"proved": sum(proved) / len(proved), "cpu_seconds": round(seconds, 2)}


def _cells(settings: dict[str, Any], figures: Figures) -> Cells:
    how = how_head("classes", settings["proof_classes"])
    few = figures["classes"]
    return [
        "head",
        how,
        f"{few['support']:,.0f} classes possible",
        "-",
        "-",
        f"{few['found']:.1%} of the tokens possible",
    ]


def _ways(figures: Figures) -> dict[str, dict[str, Any]]:
    return {"dense": {"found": 1.0, "support": None}, "calibrated": figures["classes"]}


def _verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    for record in records:
        proofs = [record["figures"][goal]["proofs"]["exact_search"] for goal in ("coverage", "classes")]
        least = min(found["proved"] for found in proofs)
        yield Verdict("Whisper: 95 % of the transcripts proved", f"{least:.0%} by `exact_search`", least >= 0.95)


PART = Part(
    name="speech_head",
    run=head,
    reads=(*SPOKEN, "coverage", "proof_classes", "proofs"),
    text=TEXT,
    cells=_cells,
    description=Description(
        TASK,
        (Measure("support holds the token", "found", ".1%", "higher"), Measure("classes", "support", ".0f")),
        _ways,
        place="at its head",
        data=sentences_spoken,
    ),
    verdicts=_verdicts,
)
