"""The head of a pretrained language model whose supports promise a coverage, beside other prediction sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hf_sparse

from ..lib.models import config_of, save
from ..lib.records import Figures, Record
from .data import windows
from .language import OF_HEAD, TASK, WINDOWS, logits_of, rows_of
from .part import Cells, Description, Part, Verdict, how_head, no_weight_trained
from .promises import coverage, ways_of
from .sets import impossible, loss, mean_support
from .sources import load


def promises(settings: Any, folder: Path) -> Figures:
    """Coverage and sizes of a sparse head's supports beside APS, RAPS and LAC, over splits of one text's tokens.

    Then the last coverage of the settings is asked of ``calibrate``, on one half of the text, and found on the other.
    """
    model, tokenizer = load(settings.source, "causal")
    fit, test = windows(tokenizer, Path(settings.data), settings.length, settings.rows)
    z, y = logits_of(model, test)
    over_splits = coverage(y, settings.coverage, ways_of(z, y, settings), settings.splits)
    hf_sparse.sparsify(model, head="entmax15", example={"input_ids": fit[:1]})
    hf_sparse.calibrate(model, rows_of(fit), coverage=settings.coverage[-1], progress=False)
    save(model, tokenizer, folder)
    p = hf_sparse.probabilities(model, z)
    return {
        "coverage": over_splits,
        "asked": settings.coverage[-1],
        "found": 1 - impossible(p, y),
        "support": mean_support(p),
        "loss": loss(p, y),
        "dense": loss(z.softmax(-1), y),
        "tokens": len(y),
        "config": config_of(model),
    }


def _cells(settings: dict[str, Any], figures: Figures) -> Cells:
    how = how_head("coverage", figures["asked"])
    kept = f"{figures['support']:,.0f} classes possible"
    held = f"{figures['loss']:.3f}, {figures['found']:.1%} of the tokens possible"
    return ["head", how, kept, f"loss {figures['dense']:.3f}", "-", held]


def _ways(figures: Figures) -> dict[str, dict[str, Any]]:
    dense = {"loss": figures["dense"], "found": 1.0, "support": None}
    return {"dense": dense, "calibrated": {key: figures[key] for key in dense}}


def _fitted(settings: dict[str, Any], figures: Figures) -> str:
    return (
        f"{no_weight_trained(settings, figures)} The support holds the observed token with probability "
        f"{figures['asked']:g}: marginally, over tokens exchangeable with those it was calibrated on, not for each "
        "position."
    )


def _verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    for record in records:
        by_asked = record["figures"]["coverage"]
        furthest = max(abs(sets["entmax"]["coverage"] - float(asked)) for asked, sets in by_asked.items())
        smaller = sum(
            sets["entmax"]["size"] <= min(sets["aps"]["size"], sets["raps"]["size"]) for sets in by_asked.values()
        )
        aim = "SmolLM2 head: coverage within one point of what was asked"
        yield Verdict(aim, f"{furthest:.1%} at most", furthest <= 0.01)
        yield Verdict(
            "SmolLM2 head: sets no larger than those of APS and RAPS",
            f"at {smaller} of {len(by_asked)} coverages",
            smaller == len(by_asked),
        )


PART = Part(
    name="coverage",
    run=promises,
    reads=(*WINDOWS, "coverage", "alphas", "penalties", "splits"),
    cells=_cells,
    description=Description(TASK, OF_HEAD, _ways, place="at its head", fitted=_fitted),
    verdicts=_verdicts,
)
