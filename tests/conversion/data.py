"""Loaders of made-up data for the tests of conversion."""

import torch
from torch import Tensor

from tests.tiny_models import tokens


def loader(model: torch.nn.Module, num_batches: int = 2, rows: int = 3) -> list[dict[str, Tensor]]:
    """Batches with labels, some of them ignored."""
    batches = []
    for seed in range(num_batches):
        ids, labels = tokens(rows, seed=10 + seed), tokens(rows, seed=20 + seed)
        own = not model.config.is_encoder_decoder and not type(model).__name__.endswith("MaskedLM")
        labels = ids.clone() if own else labels
        labels[0, 2:4] = -100
        batches.append({"input_ids": ids, "labels": labels})
    return batches
