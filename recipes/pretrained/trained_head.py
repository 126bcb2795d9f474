"""A pretrained language model whose sparse head is trained for few possible classes, beside cut distributions."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hf_sparse

from ..lib.models import config_of, save
from ..lib.records import Figures, Record
from .data import windows
from .language import OF_HEAD, TASK, WINDOWS, logits_of, rows_of
from .part import Cells, Description, Part, Verdict, how_head
from .sets import Cut, impossible, loss, mean_support
from .sources import load
from .trained import TRAINING, adapted, arguments, continued, merged, schedule, training_rows


def trained_head(settings: Any, folder: Path) -> Figures:
    """Train a head calibrated for a mean number of classes by its own loss, and a dense model by cross-entropy.

    Both by adapters, for as many steps on the first half of a text; the temperature is then calibrated again, for as
    many classes. The second half has their losses, and that of the dense model's distribution with as many classes:
    those above one probability.
    """
    dense, tokenizer = load(settings.source, "causal")
    fit, test = windows(tokenizer, Path(settings.data), settings.length, settings.rows)
    text = training_rows(tokenizer, settings)
    model = copy.deepcopy(dense)
    hf_sparse.sparsify(model, head="entmax15", example={"input_ids": fit[:1]})
    figures: Figures = {"dense": {"loss": loss(logits_of(dense, test)[0].softmax(-1), test[:, 1:].flatten())}}
    hf_sparse.calibrate(model, rows_of(fit), classes=settings.few_classes, progress=False)
    figures["calibrated"] = _figures(model, test)
    print(figures, flush=True)
    model = adapted(model, settings)
    hf_sparse.SparseTrainer(model, arguments(settings, folder, **schedule(settings)), train_dataset=text).train()
    model = merged(model)
    hf_sparse.calibrate(model, rows_of(fit), classes=settings.few_classes, progress=False)
    figures["trained"] = _figures(model, test)
    z, y = logits_of(continued(dense, text, settings, folder), test)
    figures["continued"] = {"loss": loss(z.softmax(-1), y)}
    p, least = Cut(z)(settings.few_classes)
    figures["cut"] = {"loss": loss(p, y), "found": 1 - impossible(p, y), "support": mean_support(p), "least": least}
    print(figures, flush=True)
    save(model, tokenizer, folder)
    return {
        **figures,
        "tokens": len(y),
        "train_tokens": settings.steps * settings.batch_size * settings.length,
        "config": config_of(model),
    }


def _figures(model: Any, test: Any) -> Figures:
    """Loss of a sparse head, the share of tokens that it holds, and its mean number of classes."""
    z, y = logits_of(model, test)
    p = hf_sparse.probabilities(model, z)
    return {"loss": loss(p, y), "found": 1 - impossible(p, y), "support": mean_support(p)}


def _cells(settings: dict[str, Any], figures: Figures) -> Cells:
    after, found = f"after {settings['steps']} steps", figures["trained"]
    held = f"{found['loss']:.3f}, {found['found']:.1%} of the tokens possible, {after}"
    return [
        "head",
        f"{how_head('classes', settings['few_classes'])}, `SparseTrainer`",
        f"{found['support']:,.0f} classes possible",
        f"loss {figures['continued']['loss']:.3f} {after}",
        "-",
        held,
    ]


def _ways(figures: Figures) -> dict[str, dict[str, Any]]:
    whole = {"found": 1.0, "support": None}
    dense = {way: {**whole, **figures[way]} for way in ("dense", "continued")}
    return dense | {way: figures[way] for way in ("calibrated", "trained")}


def _fitted(settings: dict[str, Any], figures: Figures) -> str:
    return (
        "Alpha and temperature were fitted for a mean number of classes; then adapters were trained by the head's "
        f"own loss for {settings['steps']} steps, beside a dense model, and the temperature was fitted again."
    )


def _verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    for record in records:
        figures, classes = record["figures"], record["settings"]["few_classes"]
        own, cut = (figures[way]["loss"] / figures["continued"]["loss"] - 1 for way in ("trained", "cut"))
        yield Verdict(
            f"SmolLM2 head, trained: loss within 2 % of dense trained alike with at most {classes:g} classes",
            f"{own:+.1%} with {figures['trained']['support']:.0f}; the dense one's best cut {cut:+.1%}",
            own <= 0.02 and figures["trained"]["support"] <= classes,
        )


PART = Part(
    name="trained_head",
    run=trained_head,
    reads=(*WINDOWS, *TRAINING, "few_classes", "rank"),
    cells=_cells,
    description=Description(TASK, OF_HEAD, _ways, place="at its head", fitted=_fitted),
    verdicts=_verdicts,
)
