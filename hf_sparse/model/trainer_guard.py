"""The stock ``Trainer`` beside a sparse head: an evaluation loss that it would compute by itself is refused."""

from __future__ import annotations

import functools
from typing import Any

_GUARDED = "_hf_sparse_guarded"


def guard_evaluation() -> None:
    """Let ``Trainer`` refuse to evaluate a sparse head with its own label smoothing, which is that of softmax.

    In training the model notices by itself that the labels were taken away. In evaluation nothing tells it, so that
    this changes a method of ``Trainer``: when one first asks a sparse model, as it is too slow to import before.
    """
    from transformers import Trainer

    loop: Any = Trainer.evaluation_loop
    if hasattr(loop, _GUARDED):
        return

    @functools.wraps(loop)
    def evaluation_loop(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        configs = [getattr(module, "_sparse_config", None) for module in self.model.modules()]
        if self.label_smoother is not None and any(config is not None and config.head for config in configs):
            raise ValueError(
                f"label_smoothing_factor={self.args.label_smoothing_factor} would report a dense loss for a sparse "
                "head; leave it 0 where you evaluate, and train with SparseTrainer and sparse_label_smoothing"
            )
        return loop(self, *args, **kwargs)

    setattr(evaluation_loop, _GUARDED, True)
    Trainer.evaluation_loop = evaluation_loop
