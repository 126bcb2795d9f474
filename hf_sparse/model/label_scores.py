"""Scores of labels under a sparse head, where TRL's trainers would take them from softmax.

``trl.trainer.utils.add_fused_lm_head`` puts a forward on a model that, asked with ``fused_lm_head=True``, runs the
backbone, multiplies with the weights of the head by itself and takes log_softmax. On a sparse model the forward below
stands in its place. It runs the model's own forward with the head put off, and reads the distribution of the head's
map for the labels that count, so many rows at a time that no batch of logits is ever held.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.utils import ModelOutput

from ..config import MapConfig
from ..functional.rows import upcast
from .distribution import log_distribution
from .find import sparse_state
from .head_loss import HeadLoss
from .lazy_logits import LOGITS_AT_A_TIME, LinearLogits
from .state import SparseState

_IGNORED = -100


@dataclass
class LabelScores(ModelOutput):
    """What a model with TRL's fused head returns; shapes are (batch, length) of the shifted labels, 0 where ignored.

    Attributes:
        loss: minus the sum of ``log_probs``, divided by ``num_items_in_batch`` or the number of labels, plus the
            weighted ``aux_loss``.
        log_probs: log-probability of each label in nats, float32: the floor of about -10,000 for probability zero.
            Minus the loss of the head's map where the trainer minimizes that.
        entropy: of the next-token distribution, in nats.
        log_sum_sq_probs: ``log sum_v p_v^2``, without gradient.
        mean_logits: mean of the raw scores over the vocabulary, divided by the temperature, without gradient.
        is_top1: whether the label is the likeliest token.
        label_mask: whether the label counts.
        aux_loss: the load-balancing loss of a mixture of experts.
    """

    loss: Tensor | None = None
    log_probs: Tensor | None = None
    entropy: Tensor | None = None
    log_sum_sq_probs: Tensor | None = None
    mean_logits: Tensor | None = None
    is_top1: Tensor | None = None
    label_mask: Tensor | None = None
    aux_loss: Tensor | None = None


def in_place_of_fused_head(model: Any, forward: Any) -> Any:
    """``forward``, or where it is that of ``add_fused_lm_head`` on a sparse head, one that reads the sparse head.

    Args:
        model: a sparse model.
        forward: what is to become its instance attribute ``forward``.
    """
    asked = _asked(forward)
    if asked is None or sparse_state(model).config.head is None:
        return forward
    before: Callable[..., Any] | None = vars(model).get("forward")

    @functools.wraps(type(model).forward)
    def label_scores(self: Any, *args: object, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        own = functools.partial(type(self).forward, self) if before is None else before
        return _label_scores(self, own, asked, *args, **kwargs) if fused_lm_head else own(*args, **kwargs)

    return MethodType(label_scores, model)


@dataclass(frozen=True)
class _Asked:
    """Arguments of ``add_fused_lm_head``."""

    temperature: float
    outputs: tuple[str, ...]


def _asked(forward: object) -> _Asked | None:
    """What ``add_fused_lm_head`` was called with; None for a forward that it did not make."""
    function = getattr(forward, "__func__", forward)
    if not inspect.isfunction(function) or "fused_lm_head" not in function.__code__.co_varnames:
        return None  # not its signature, which wraps may have copied from the model's own
    kept = inspect.getclosurevars(function).nonlocals
    return _Asked(kept["temperature"], kept["outputs"]) if kept.keys() >= {"temperature", "outputs"} else None


def _label_scores(
    model: Any,
    forward: Callable[..., Any],
    asked: _Asked,
    *args: object,
    labels: Tensor | None = None,
    shift_labels: Tensor | None = None,
    num_items_in_batch: Any = None,
    **kwargs: Any,
) -> LabelScores:
    state, config = sparse_state(model), model.config.get_text_config()
    if getattr(config, "output_router_logits", False):
        kwargs.setdefault("output_router_logits", True)
    kwargs |= {"log_probs": False, "use_cache": False, "return_dict": True}
    with HeadLoss(None, model.get_output_embeddings(), None, 0.0, fused=True):
        output = forward(*args, **kwargs)
    logits, targets = output.logits, shift_labels
    if targets is None:
        logits, targets = logits[:, :-1], cast(Tensor, labels)[:, 1:]
    targets = targets.to(logits.device)
    mask = targets != _IGNORED
    found = _scores(state, asked, logits[mask], targets[mask])
    scores = {name: value.new_zeros(mask.shape).masked_scatter(mask, value) for name, value in found.items()}
    count = mask.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    loss, aux_loss = -scores["log_probs"].sum() / count, getattr(output, "aux_loss", None)
    if aux_loss is not None:
        loss = loss + getattr(config, "router_aux_loss_coef", 0.0) * aux_loss
    return LabelScores(loss=loss, label_mask=mask, aux_loss=aux_loss, **scores)


def _scores(state: SparseState, asked: _Asked, rows: Any, target: Tensor) -> dict[str, Tensor]:
    """The scores of targets (N,) under rows (N, V) of logits, each (N,)."""
    if not state.scored_by_loss:
        return _by_chunks(rows, target, lambda z, y: _read(state.head, asked, z, y))
    factor = state.config.loss_factor
    if state.config.fused_loss and isinstance(rows, LinearLogits):
        with torch.no_grad():
            found = _by_chunks(rows, target, lambda z, y: _read(state.head, asked, z, y))
        return found | {"log_probs": -factor * rows.loss(state.head, target, reduction="none")}
    loss = state.head.loss()

    def read(z: Tensor, y: Tensor) -> dict[str, Tensor]:
        return _read(state.head, asked, z.detach(), y) | {"log_probs": -factor * loss(z, y, reduction="none")}

    return _by_chunks(rows, target, read)


def _by_chunks(rows: Any, target: Tensor, read: Callable[[Tensor, Tensor], dict[str, Tensor]]) -> dict[str, Tensor]:
    """``read`` of a few rows of logits at a time, which the backward pass computes again."""
    size = max(1, LOGITS_AT_A_TIME // rows.shape[-1])

    def chunk(start: int) -> dict[str, Tensor]:
        z = rows[start : start + size]
        return read(upcast(z.compute() if isinstance(z, LinearLogits) else z), target[start : start + size])

    if len(target) <= size:
        return chunk(0)
    parts = [checkpoint(chunk, start, use_reentrant=False) for start in range(0, len(target), size)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _read(head: MapConfig, asked: _Asked, z: Tensor, target: Tensor) -> dict[str, Tensor]:
    log_p = log_distribution(head, z)
    if asked.temperature != 1:  # as the sampler's: p to the power 1 / T, divided by its sum
        log_p = (log_p / asked.temperature).log_softmax(-1)
    readings: dict[str, Callable[[], Tensor]] = {
        "entropy": lambda: -(log_p.exp() * log_p).sum(-1),
        "log_sum_sq_probs": lambda: (2 * log_p.detach()).logsumexp(-1),
        "mean_logits": lambda: z.detach().mean(-1) / asked.temperature,
        "is_top1": lambda: z.argmax(-1) == target,
    }
    found = {"log_probs": log_p.gather(-1, target[:, None])[:, 0]}
    return found | {name: reading() for name, reading in readings.items() if name in asked.outputs}
