"""The stock ``Trainer`` beside a sparse head: an evaluation loss that it would compute by itself is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from .patch import Patch
from .state import state_of


def _evaluation_loop(original: Callable[..., Any], self: PreTrainedModel, *args: object, **kwargs: object) -> Any:
    states = [state_of(module) for module in self.model.modules()]
    if self.label_smoother is not None and any(state is not None and state.config.head for state in states):
        raise ValueError(
            f"label_smoothing_factor={self.args.label_smoothing_factor} would report a dense loss for a sparse "
            "head; leave it 0 where you evaluate, and train with SparseTrainer and sparse_label_smoothing"
        )
    return original(self, *args, **kwargs)


EVALUATION = Patch(
    "transformers:Trainer",
    "evaluation_loop",
    _evaluation_loop,
    reason="Its label smoothing is that of softmax. In training the model notices that the labels were taken away; in "
    "evaluation nothing tells it.",
    trigger="a Trainer first asks a sparse model whether it accepts loss keywords: Trainer is slow to import",
)
