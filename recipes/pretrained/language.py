"""A pretrained language model: what its parts share."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_sparse.attention.soft_edges import soft_edges

from ..lib.card import Measure
from .part import ZEROS

# Settings that say which windows of a text a model reads.
WINDOWS = ("source", "data", "length", "rows")
TASK = "text-generation"
OF_ATTENTION = (Measure("loss, nats a token", "loss", ".4f", "lower"), ZEROS)
OF_HEAD = (
    Measure("loss, 1e-4 of the uniform mixed in", "loss", ".3f", "lower"),
    Measure("support holds the token", "found", ".1%", "higher"),
    Measure("classes", "support", ".0f"),
)


def rows_of(ids: Tensor) -> list[dict[str, Tensor]]:
    """A batch for each window."""
    return [{"input_ids": row[None], "labels": row[None]} for row in ids]


@torch.no_grad()
def token_loss(model: PreTrainedModel, ids: Tensor) -> float:
    """Cross-entropy of a model with a dense head, in nats a token."""
    losses = [float(model(input_ids=row[None], labels=row[None]).loss) for row in ids]
    return sum(losses) / len(losses)


@torch.no_grad()
def loss_and_edges(model: PreTrainedModel, ids: Tensor) -> tuple[float, float]:
    """The same of a model with sparse attention, and the share of visible keys that have weight."""
    with soft_edges(model) as edges:
        loss = token_loss(model, ids)
    return loss, edges.kept / edges.visible


@torch.no_grad()
def logits_of(model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N, V) of all positions with a next token, and those tokens (N,)."""
    logits = [model(input_ids=row[None]).logits[0, :-1] for row in ids]
    return torch.cat(logits).float(), ids[:, 1:].flatten()
