"""A pretrained masked language model of chemical reactions with sparse attention, cross-validated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

import hf_sparse

from ..lib.card import Measure
from ..lib.models import config_of, save
from ..lib.records import Figures
from .data import REACTIONS, Batch
from .encoders import zeros_of
from .part import WAYS, ZEROS, Cells, Description, Part, how
from .sources import load


def masked_batches(tokenizer: Any, reactions: list[str]) -> list[Batch]:
    """A batch for each reaction, a row for each of its tokens, masked."""
    batches = []
    for reaction in reactions:
        ids = torch.tensor(tokenizer(reaction)["input_ids"])
        places = torch.arange(1, len(ids) - 1)
        rows = ids.repeat(len(places), 1)
        labels = torch.full_like(rows, -100)
        row = torch.arange(len(places))
        labels[row, places] = rows[row, places]
        rows[row, places] = tokenizer.mask_token_id
        batches.append({"input_ids": rows, "attention_mask": torch.ones_like(rows), "labels": labels})
    return batches


@torch.no_grad()
def masked_figures(model: PreTrainedModel, batches: list[Batch]) -> tuple[float, float, int]:
    """Sums over masked tokens: cross-entropy in nats, tokens found; and their number."""
    total, right, count = 0.0, 0, 0
    for batch in batches:
        labels = batch["labels"]
        kept = labels != -100
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[kept]
        total += float(torch.nn.functional.cross_entropy(logits, labels[kept], reduction="sum"))
        right += int((logits.argmax(-1) == labels[kept]).sum())
        count += int(kept.sum())
    return total, right, count


def reactions(settings: Any, folder: Path) -> Figures:
    """Masked tokens of textbook reactions, one at a time: every fold is judged by settings fitted on the others."""
    sums: dict[str, list[float]] = {}
    chosen = REACTIONS[: settings.rows]
    for fold in range(settings.folds):
        model, tokenizer = load(settings.source, "masked")
        test = masked_batches(tokenizer, chosen[fold :: settings.folds])
        rest = [reaction for i, reaction in enumerate(chosen) if i % settings.folds != fold]
        plain = [{"input_ids": torch.tensor([tokenizer(reaction)["input_ids"]])} for reaction in rest]
        _add(sums, "dense", masked_figures(model, test), 0.0)
        hf_sparse.sparsify(model, attn=settings.map, example={"input_ids": test[0]["input_ids"][:1]})
        _add(sums, "swapped", masked_figures(model, test), zeros_of(model, test[:2]))
        hf_sparse.calibrate(model, plain, edges=settings.edges or None, max_batches=None, progress=False)
        _add(sums, "calibrated", masked_figures(model, test), zeros_of(model, test[:2]))
    save(model, tokenizer, folder)
    rows = {
        name: {"loss": total / count, "accuracy": right / count, "zeros": zeros / settings.folds}
        for name, (total, right, count, zeros) in sums.items()
    }
    print(rows, flush=True)
    return {**rows, "reactions": len(chosen), "tokens": int(sums["dense"][2]), "config": config_of(model)}


def _add(sums: dict[str, list[float]], name: str, figures: tuple[float, float, int], zeros: float) -> None:
    sums[name] = [old + new for old, new in zip(sums.get(name, [0.0] * 4), (*figures, zeros))]


def _cells(settings: dict[str, Any], figures: Figures) -> Cells:
    texts = [f"accuracy {figures[way]['accuracy']:.1%}, loss {figures[way]['loss']:.3f}" for way in WAYS]
    return ["attention", how(settings), f"{figures['calibrated']['zeros']:.1%}", *texts]


def _ways(figures: Figures) -> dict[str, dict[str, Any]]:
    return {way: figures[way] for way in WAYS}


def _data(settings: dict[str, Any], figures: Figures) -> str:
    folds = f"{settings['folds']} folds, {figures['tokens']:,} masked tokens"
    return f"Textbook reactions: {figures['reactions']}, {folds}"


PART = Part(
    name="reactions",
    run=reactions,
    reads=("source", "rows", "folds", "map", "edges"),
    text="chemical reactions",
    cells=_cells,
    description=Description(
        "fill-mask",
        (
            Measure("loss, nats a masked token", "loss", ".4f", "lower"),
            Measure("accuracy", "accuracy", ".1%", "higher"),
            ZEROS,
        ),
        _ways,
        data=_data,
    ),
)
