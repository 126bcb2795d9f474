"""A pretrained language model, sparse in attention or at the head."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import hf_sparse
from hf_sparse.attention import observe

from ..lib.models import config_of, save
from ..lib.records import Figures
from .data import windows
from .promises import coverage, ways_of
from .sets import Cut, Nucleus, impossible, loss, mean_support
from .sources import load


def rows_of(ids: Tensor) -> list[dict[str, Tensor]]:
    """A batch for each window."""
    return [{"input_ids": row[None], "labels": row[None]} for row in ids]


@torch.no_grad()
def token_loss(model: PreTrainedModel, ids: Tensor) -> float:
    """Cross-entropy of a model with a dense head, in nats a token."""
    losses = [float(model(input_ids=row[None], labels=row[None]).loss) for row in ids]
    return sum(losses) / len(losses)


def attention(settings: Any, folder: Path) -> Figures:
    """Swap attention, calibrate it, and measure the loss on the second half of the text."""
    model, tokenizer = load(settings.source, "causal")
    fit, test = windows(tokenizer, Path(settings.data), settings.length, settings.rows)
    dense = token_loss(model, test)
    hf_sparse.sparsify(model, attn=settings.map, example={"input_ids": fit[:1]})
    swapped = token_loss(model, test)
    start = time.process_time()
    report = hf_sparse.calibrate(model, rows_of(fit), edges=settings.edges or None, progress=False)
    seconds = time.process_time() - start
    with observe(model) as counts:
        calibrated = token_loss(model, test)
    kept = sum(count.nonzero for count in counts.values())
    visible = sum(count.rows for count in counts.values()) * (settings.length + 1) / 2
    save(model, tokenizer, folder)
    return {
        "dense": dense,
        "swapped": swapped,
        "calibrated": calibrated,
        "increase": calibrated / dense - 1,
        "edges": kept / visible,
        "own_report": {"before": report.before.divergence, "after": report.after.divergence},
        "calibration_cpu_seconds": round(seconds, 1),
        "tokens": test.numel() - len(test),
        "config": config_of(model),
    }


@torch.no_grad()
def logits_of(model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N, V) of all positions with a next token, and those tokens (N,)."""
    logits = [model(input_ids=row[None]).logits[0, :-1] for row in ids]
    return torch.cat(logits).float(), ids[:, 1:].flatten()


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
