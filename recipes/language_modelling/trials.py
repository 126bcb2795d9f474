"""What might help rare tokens: settings of training that are changed one by one."""

from __future__ import annotations

from typing import Any

# By name: what is changed, in words and as settings. All have the learning rate of the embedding that is best.
TRIALS: dict[str, tuple[str, dict[str, Any]]] = {
    "usual": ("nothing", {}),
    "lr": ("half of the learning rate", {"lr": 3e-3}),
    "beta2": ("Adam's beta2 0.95", {"adam_beta2": 0.95}),
    "epsilon": ("Adam's epsilon 1e-6", {"adam_epsilon": 1e-6}),
    "decay": ("weight decay 0.1", {"weight_decay": 0.1}),
    "warmup-short": ("warm-up of 2%, not 10%", {"warmup": 0.02}),
    "warmup-long": ("warm-up of 30%", {"warmup": 0.3}),
    "untied": ("a matrix of its own for the head", {"tied": False}),
    "offsets": ("offsets, from the tokens' frequencies on", {"offsets": True}),
}
