"""The loss of quality when a model becomes sparse, measured next to itself when it is dense."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention.site import AttentionSite, trial, weights_under
from ..config import MapConfig
from ..functional import softmax
from ..functional.rows import upcast
from ..metrics import eps_perplexity, support_size
from ..model.distribution import distribution
from ._batches import Batch, scored
from ._rules import MapsByPath, all_softmax


@dataclass(frozen=True)
class Trial:
    """A choice of maps to measure.

    Attributes:
        attention: the map of each site by its path; None is softmax.
        head: the head's map; None is softmax.
    """

    attention: MapsByPath
    head: MapConfig | None = None


@dataclass(frozen=True)
class Quality:
    """A model on the user's data.

    Attributes:
        loss: the loss of the head's map, a target; cross-entropy in nats for softmax. Losses of different maps do not
            compare.
        eps_perplexity: ``hf_sparse.metrics.eps_perplexity``, in classes a target; it does compare.
        divergence: ``KL(q || p)`` of the model's next-token distribution from the dense model's, over its support, in
            nats a target.
        support: classes with nonzero probability, a target.
        targets: how many there were.
    """

    loss: float
    eps_perplexity: float
    divergence: float
    support: float
    targets: int


@dataclass(frozen=True)
class LayerQuality:
    """A layer's attention weights q on the scores of the dense model, next to its softmax p; means over queries.

    Attributes:
        error: ``||q - p||^2``.
        divergence: ``KL(q || p)`` over the support, in nats.
        support: keys with nonzero weight.
        dense_support: keys with nonzero weight under softmax, which is how many are visible.
    """

    error: float
    divergence: float
    support: float
    dense_support: float


@dataclass
class _Sums:
    """Sums over targets, and over queries by path."""

    targets: int = 0
    model: list[float] = field(default_factory=lambda: [0.0] * 4)
    layers: dict[str, list[float]] = field(default_factory=dict)

    def add_layer(self, path: str, q: Tensor, p: Tensor) -> None:
        """Add the weights of one call (..., keys)."""
        visible = support_size(p)
        each = [squared_distance(q, p), support_divergence(q, p), support_size(q), visible, visible > 0]
        old = self.layers.get(path, [0.0] * len(each))
        self.layers[path] = [total + float(value.double().sum()) for total, value in zip(old, each)]

    def add_targets(self, logits: Tensor, target: Tensor, head: MapConfig, p: Tensor, eps: float) -> None:
        """Add the logits (N, V) and targets (N,) of one batch; p (N, V) is the dense distribution."""
        q = distribution(head, logits)
        count = len(target)
        each = [
            head.loss()(logits, target, reduction="sum"),
            eps_perplexity(q, target, eps).log() * count,
            support_divergence(q, p).sum(),
            support_size(q).sum(),
        ]
        self.targets += count
        self.model = [total + float(value) for total, value in zip(self.model, each)]

    def quality(self) -> Quality:
        """The means over targets."""
        loss, log_perplexity, divergence, support = (total / self.targets for total in self.model)
        return Quality(loss, math.exp(log_perplexity), divergence, support, self.targets)

    def layer_quality(self) -> dict[str, LayerQuality]:
        """The means over queries that see a key."""
        layers = {path: sums for path, sums in self.layers.items() if sums[-1]}
        return {path: LayerQuality(*(total / sums[-1] for total in sums[:-1])) for path, sums in layers.items()}


def measure(
    model: PreTrainedModel, batches: list[Batch], trials: Sequence[Trial], eps: float, advance: Callable[[], object]
) -> tuple[Quality, list[tuple[Quality, dict[str, LayerQuality]]]]:
    """The dense model, and what each trial makes of it.

    Args:
        model: a sparse model, in evaluation mode. Its maps are put back.
        batches: keyword arguments for forward calls, labels among them.
        trials: what to measure.
        eps: of ``eps_perplexity``.
        advance: called after every forward call.

    Returns:
        The quality of the dense model; and for each trial its own, and that of every layer which is not softmax in it.

    Raises:
        ValueError: no target counts.

    Cost: one forward pass over the data for the dense model, and one for each trial.
    """
    softmax_head = MapConfig("softmax")
    dense, sums = _Sums(), [_Sums() for _ in trials]

    def watch(site: AttentionSite, module: nn.Module, scores: Tensor) -> None:
        z = upcast(scores)
        p = softmax(z)
        for one, its in zip(trials, sums):
            map_config = one.attention.get(site.path)
            if map_config is not None:
                its.add_layer(site.path, weights_under(map_config, module, z), p)

    everywhere = all_softmax(model)
    for batch in batches:
        with trial(model, everywhere, watch):
            logits, target = scored(model, batch)
        advance()
        if len(target) == 0:
            continue
        p = logits.softmax(-1)
        dense.add_targets(logits, target, softmax_head, p, eps)
        for one, its in zip(trials, sums):
            with trial(model, everywhere | dict(one.attention)):
                logits, _ = scored(model, batch)
            its.add_targets(logits, target, one.head or softmax_head, p, eps)
            advance()
    if dense.targets == 0:
        raise ValueError("no target counts in the model's loss: every label is ignored once labels are shifted")
    return dense.quality(), [(its.quality(), its.layer_quality()) for its in sums]


def support_divergence(q: Tensor, p: Tensor) -> Tensor:
    """``KL(q || p) = sum_{q_i > 0} q_i log(q_i / p_i)``, in nats: finite however many zeros q has.

    Args:
        q: sparse weights (..., V).
        p: dense weights (..., V), above zero where q is.

    Returns:
        Divergences (...), float32 (float64 for float64 weights); 0 where q is all zeros.

    >>> support_divergence(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))  # log 2
    tensor(0.6931)
    """
    smallest = torch.finfo(p.dtype).tiny
    return (torch.xlogy(q, q) - torch.xlogy(q, p.clamp(min=smallest))).sum(-1)


def squared_distance(q: Tensor, p: Tensor) -> Tensor:
    """``||q - p||^2`` over the last axis: the error that weights q in place of p make in what they average.

    Both sum to one, so the mean of the values drops out: for values with independent entries of variance s^2 the
    expected squared error of ``sum_i (q_i - p_i) v_i`` is ``s^2 ||q - p||^2`` an entry.
    """
    return (q - p).square().sum(-1)
