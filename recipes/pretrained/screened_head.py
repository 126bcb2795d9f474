"""The head of a pretrained language model, screened and whole, on the hidden states of a text, one after another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_sparse.config import MapConfig
from hf_sparse.model.distribution import distribution
from hf_sparse.model.screening import HeadScreen

from ..lib.records import Figures
from .data import windows
from .language import WINDOWS
from .part import Part
from .sources import load

# As calibrated for text, and one with more classes.
MAPS: dict[str, dict[str, Any]] = {
    "entmax15, T = 6.5": {"name": "entmax15", "temperature": 6.5},
    "entmax 1.3, T = 4": {"name": "entmax", "alpha": 1.3, "temperature": 4.0},
}


@torch.no_grad()
def hidden_states(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """What the head is given (N, D), for windows of a text (windows, length)."""
    seen: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0][0]))
    try:
        for row in rows:
            model(input_ids=row[None])
    finally:
        hook.remove()
    return torch.cat(seen)


def steps(settings: Any, folder: Path) -> Figures:
    """Compare as many steps as there are tokens in the second half of a text's windows."""
    model, tokenizer = load(settings.source, "causal")
    _, test = windows(tokenizer, Path(settings.data), settings.length, settings.rows)
    hidden = hidden_states(model, test)
    head = model.get_output_embeddings()
    return {"steps": len(hidden), "maps": {name: compared(head, hidden, spec) for name, spec in MAPS.items()}}


@torch.no_grad()
def compared(head: nn.Linear, hidden: Tensor, spec: dict[str, Any]) -> Figures:
    """One map: steps with another likeliest token, the largest difference of a probability, and CPU time."""
    map_config, screen = MapConfig.parse(spec, "head"), HeadScreen("screened")
    differing, furthest, support, seconds = 0, 0.0, 0, {"screened": 0.0, "whole": 0.0}
    with screen.run():
        for x in hidden[:, None, None]:
            start = time.process_time()
            with screen.put_off(head, map_config):
                lazy = head(x)
            logits = screen.logits(lazy, map_config)
            middle = time.process_time()
            whole = head(x)
            seconds["whole"] += time.process_time() - middle
            seconds["screened"] += middle - start
            p, expected = distribution(map_config, logits), distribution(map_config, whole)
            differing += int(p.argmax() != expected.argmax())
            furthest = max(furthest, float((p - expected).abs().max()))
            support += int((expected > 0).sum())
    return {
        "differing": differing,
        "furthest": furthest,
        "support": support / len(hidden),
        "time": seconds["screened"] / seconds["whole"],
    }


PART = Part(name="screened_head", run=steps, reads=WINDOWS)
