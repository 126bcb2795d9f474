"""TRL's trainers beside sparse models: ``SFTTrainer`` minimizes the loss of the head's map, cards say what that is.

Log-probabilities of a reference that TRL keeps on disk are found again under the same maps alone.

The loss of ``SFTTrainer`` is the sum of what a model with TRL's fused head returns as log-probabilities, which
preference trainers read too. A label outside the support has none: only the map's own loss has a gradient there that
is of use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .find import sparse_models, sparse_state
from .patch import Patch
from .state import state_of
from .trainer_guard import create_model_card

_MODULE = "trl.trainer.sft_trainer"
_OF_ALL = "trl.trainer.base_trainer"
_OF_REFERENCES = ("trl.trainer.dpo_trainer", "trl.trainer.kto_trainer")


def _compute_loss(original: Callable[..., Any], self: Any, *args: object, **kwargs: object) -> Any:
    state = state_of(self.model)
    if state is None or state.config.head is None:
        return original(self, *args, **kwargs)
    if self.label_smoother is not None:
        raise ValueError(
            f"label_smoothing_factor={self.args.label_smoothing_factor} is that of softmax and would smooth the "
            "logarithm of zero; leave it 0, or train with SparseTrainer and sparse_label_smoothing"
        )
    state.scored_by_loss = self.args.loss_type == "nll"
    try:
        return original(self, *args, **kwargs)
    finally:
        state.scored_by_loss = False


def _hash_module(original: Callable[..., str], module: Any) -> str:
    maps = [sparse_state(model).config.maps.to_dict() for model in sparse_models(module)]
    return f"{original(module)} {maps}" if maps else original(module)


OF_TRL = (
    Patch(
        f"{_MODULE}:SFTTrainer",
        "compute_loss",
        _compute_loss,
        reason="It minimizes the loss of the head's map; every other trainer of TRL reads log-probabilities.",
        after=_MODULE,
    ),
    *(
        Patch(
            f"{_OF_ALL}:{name}",
            "create_model_card",
            create_model_card,
            reason="It writes the card of all trainers of TRL, without that of Transformers.",
            after=_OF_ALL,
            needed=False,  # by both names: its class was public before TRL 1
        )
        for name in ("_BaseTrainer", "BaseTrainer")
    ),
    *(
        Patch(
            module,
            "hash_module",
            _hash_module,
            reason="Log-probabilities of a reference are kept on disk by its weights, which a dense model may share.",
            after=module,
            needed=False,  # kto_trainer has it since TRL 1
        )
        for module in _OF_REFERENCES
    ),
)
