"""Learning curves: fit to development rows while a model trains."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from ..lib.models import probabilities
from .measures import fit

POINTS = 10  # of a curve
ROWS = 60  # of the development rows that each point is measured on


@torch.no_grad()
def fit_to(model: Any, rows: Tensor, uniform: float) -> dict[str, float]:
    """Accuracy, eps-perplexity and the share of missed tokens on ``rows``, in evaluation mode."""
    training, sums, count = model.training, dict.fromkeys(("accuracy", "eps_loss", "missed"), 0.0), 0
    model.eval()
    for batch in rows.split(20):
        p = probabilities(model, model(input_ids=batch.to(model.device)).logits[:, :-1]).cpu()
        figures = fit(p.flatten(0, 1), batch[:, 1:].flatten(), uniform)
        sums = {name: total + figures[name] for name, total in sums.items()}
        count += batch[:, 1:].numel()
    model.train(training)
    means = {name: total / count for name, total in sums.items()}
    return means | {"eps_perplexity": math.exp(means.pop("eps_loss"))}


class Curve(TrainerCallback):
    """Adds points to the trainer's log, entries with a ``dev_accuracy``; they come back from a checkpoint with it."""

    def __init__(self, rows: Tensor, uniform: float) -> None:
        self.rows = rows[:ROWS]
        self.uniform = uniform

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure the model where a point is due; without development rows there are none."""
        if len(self.rows) and state.global_step % max(state.max_steps // POINTS, 1) == 0:
            figures = fit_to(model, self.rows, self.uniform)
            state.log_history.append({"step": state.global_step, **{f"dev_{k}": v for k, v in figures.items()}})


def points(log: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The curve in a trainer's log."""
    return [entry for entry in log if "dev_accuracy" in entry]
