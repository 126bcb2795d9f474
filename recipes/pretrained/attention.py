"""Attention of a pretrained language model, calibrated."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import hf_sparse
from hf_sparse.generation.labels import token_labels

from ..lib.models import config_of, save
from ..lib.records import Figures, Record
from .data import windows
from .language import OF_ATTENTION, TASK, WINDOWS, loss_and_edges, rows_of, token_loss
from .part import WAYS, Cells, Description, Part, Verdict, how
from .pictures import draw_head
from .sources import load

SENTENCE = "The keys to the old cabinet are on the table, and the cabinet is locked."


def attention(settings: Any, folder: Path) -> Figures:
    """Swap attention, calibrate it, and measure the loss on the second half of the text."""
    model, tokenizer = load(settings.source, "causal")
    fit, test = windows(tokenizer, Path(settings.data), settings.length, settings.rows)
    dense, ids = token_loss(model, test), torch.tensor(tokenizer(SENTENCE)["input_ids"])
    shown = {"dense": weights_of(hf_sparse.sparsify(model, attn="softmax"), ids)}
    hf_sparse.unsparsify(model)
    hf_sparse.sparsify(model, attn=settings.map, example={"input_ids": fit[:1]})
    swapped = token_loss(model, test)
    start = time.process_time()
    report = hf_sparse.calibrate(model, rows_of(fit), edges=settings.edges or None, progress=False)
    seconds = time.process_time() - start
    calibrated, edges = loss_and_edges(model, test)
    shown["sparse"] = weights_of(model, ids)
    head = looks_farthest(shown["dense"])
    save(model, tokenizer, folder)
    return {
        "dense": dense,
        "swapped": swapped,
        "calibrated": calibrated,
        "increase": calibrated / dense - 1,
        "edges": edges,
        "own_report": {"before": report.before.divergence, "after": report.after.divergence},
        "calibration_cpu_seconds": round(seconds, 1),
        "tokens": test.numel() - len(test),
        "example": {
            "tokens": token_labels(ids.tolist(), tokenizer),
            "head": head,
            **{way: [[float(f"{w:.3g}") for w in row] for row in weights[head]] for way, weights in shown.items()},
        },
        "config": config_of(model),
    }


@torch.no_grad()
def weights_of(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Attention weights (layers, heads, T, T) of a sparse model in a text of T tokens."""
    return torch.stack(model(input_ids=ids[None], output_attentions=True).attentions)[:, 0]


def looks_farthest(weights: Tensor) -> tuple[int, int]:
    """Layer and head with the most weight on other tokens than the first and the one that looks.

    Args:
        weights: (layers, heads, T, T), causal.

    >>> looks_farthest(torch.tensor([[[[1.0, 0, 0], [0, 1, 0], [0.5, 0.5, 0]], [[1, 0, 0], [1, 0, 0], [0, 0, 1]]]]))
    (0, 0)
    """
    between = weights.tril(-1)[..., 1:].sum((-1, -2))
    layer, head = divmod(int(between.argmax()), between.shape[1])
    return layer, head


def _cells(settings: dict[str, Any], figures: Figures) -> Cells:
    calibrated = f"{figures['calibrated']:.3f} ({figures['increase']:+.1%})"
    zeros = f"{1 - figures['edges']:.1%}"
    return ["attention", how(settings), zeros, f"loss {figures['dense']:.3f}", f"{figures['swapped']:.3f}", calibrated]


def _ways(figures: Figures) -> dict[str, dict[str, Any]]:
    zeros = {"dense": 0.0, "swapped": None, "calibrated": 1 - figures["edges"]}
    return {way: {"loss": figures[way], "zeros": zeros[way]} for way in WAYS}


def _verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    runs = [record["figures"] for record in records]
    yield Verdict(
        "SmolLM2 attention: loss within 1 %, at most 12 % of the edges",
        "; ".join(f"{figures['increase']:+.1%} at {figures['edges']:.1%}" for figures in runs),
        any(figures["increase"] <= 0.01 and figures["edges"] <= 0.12 for figures in runs),
    )


PART = Part(
    name="attention",
    run=attention,
    reads=(*WINDOWS, "map", "edges"),
    cells=_cells,
    description=Description(TASK, OF_ATTENTION, _ways),
    verdicts=_verdicts,
    pictures={"attention.png": draw_head},
)
