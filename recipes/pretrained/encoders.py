"""Pretrained encoders: embeddings of texts, and zeros of their attention."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_sparse.attention.soft_edges import soft_edges

from .data import Batch


def embed(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Means of the last hidden states over what is not padding, of unit length (N, d)."""
    return mean_state(model(**batch).last_hidden_state, batch["attention_mask"])


def mean_state(states: Tensor, mask: Tensor) -> Tensor:
    """Means of states (N, length, d) where the mask (N, length) is 1, of unit length (N, d)."""
    kept = mask[..., None]
    return torch.nn.functional.normalize((states.float() * kept).sum(1) / kept.sum(1), dim=-1)


@torch.no_grad()
def embeddings(model: PreTrainedModel, batches: list[Batch]) -> Tensor:
    """The same of several batches, without a gradient."""
    return torch.cat([embed(model, batch) for batch in batches])


def zeros_of(model: PreTrainedModel, batches: list[Batch]) -> float:
    """Share of visible keys without weight, of queries that are not padding."""
    kept = visible = 0.0
    for batch in batches:
        lengths = batch["attention_mask"].sum(-1).double()
        for i, length in enumerate(lengths.long().tolist()):
            alone = {name: values[i : i + 1, :length] for name, values in batch.items()}
            with torch.no_grad(), soft_edges(model) as edges:
                model(**alone)
            kept += edges.kept
            visible += edges.visible
    return 1 - kept / visible
