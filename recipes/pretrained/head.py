"""The head of a pretrained language model, calibrated, beside top-p and cuts."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hf_sparse

from ..lib.records import Figures, Record
from .data import windows
from .language import WINDOWS, logits_of, rows_of
from .part import Cells, Part, Verdict, how_head
from .sets import Cut, Nucleus, impossible, loss, mean_support
from .sources import load


def head(settings: Any, folder: Path) -> Figures:
    """A sparse head beside top-p, at equal mean numbers of classes."""
    model, tokenizer = load(settings.source, "causal")
    fit, test = windows(tokenizer, Path(settings.data), settings.length, settings.rows)
    z, y = logits_of(model, test)
    top_p, cut, sizes = Nucleus(z), Cut(z), {}
    for classes in settings.classes:
        sparse = hf_sparse.sparsify(copy.deepcopy(model), head="entmax15", example={"input_ids": fit[:1]})
        hf_sparse.calibrate(sparse, rows_of(fit), classes=classes, progress=False)
        found = hf_sparse.sparse_config(sparse).head
        p = hf_sparse.probabilities(sparse, z)
        support = mean_support(p)
        q, mass = top_p(support)
        r, least = cut(support)
        sizes[str(classes)] = {
            "alpha": found.spelled_out.map_settings["alpha"],
            "temperature": found.temperature,
            "support": support,
            "loss": loss(p, y),
            "impossible": impossible(p, y),
            "nucleus": {
                "p": mass,
                "loss": loss(q, y),
                "impossible": impossible(q, y),
            },
            "cut": {"least": least, "loss": loss(r, y), "impossible": impossible(r, y)},
        }
        print(classes, sizes[str(classes)], flush=True)
    r, _ = cut(settings.few_classes)
    few = {"classes": settings.few_classes, "loss": loss(r, y), "impossible": impossible(r, y)}
    return {"dense": loss(z.softmax(-1), y), "sizes": sizes, "few": few, "tokens": len(y)}


def _cells(settings: dict[str, Any], figures: Figures) -> Cells:
    classes, found = max(figures["sizes"].items(), key=lambda item: item[1]["support"])
    how = how_head("classes", float(classes))
    kept = f"{found['support']:,.0f} classes possible"
    return ["head", how, kept, f"loss {figures['dense']:.3f}", "-", f"{found['loss']:.3f}"]


def _verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    for record in records:
        sizes = record["figures"]["sizes"].values()
        ahead = sum(found["loss"] < found["nucleus"]["loss"] for found in sizes)
        yield Verdict(
            "SmolLM2 head: smaller loss than top-p at equal mean numbers of classes",
            f"at {ahead} of {len(sizes)} sizes",
            ahead == len(sizes),
        )


PART = Part(name="head", run=head, reads=(*WINDOWS, "classes", "few_classes"), cells=_cells, verdicts=_verdicts)
