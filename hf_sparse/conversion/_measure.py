"""The loss of quality when a model becomes sparse, measured next to itself when it is dense."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..attention.site import trial
from ..config import MapConfig, SparseConfig
from ..metrics import eps_perplexity, support_size
from ..model.distribution import distribution
from ..model.find import sparse_config
from ._batches import Answer, Batch, answer
from ._closeness import DIVERGENCES, between, lost_variance
from ._rules import MapsByPath
from ._scores import HeadMeans

# Scores of classes that are compared at a time: 16 MiB in float32, several times.
_NUMBERS = 2**22


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
        divergence: distance of the model's output from the dense model's, by the measure of the report: ``"eps_kl"``
            and ``"js"`` in nats a position, ``"states"`` the share of the variance of the dense outputs.
        targets: positions that were measured; those with a label that counts, where there are labels.
        loss: the model's loss, that of the head's map, a target; cross-entropy in nats for softmax. Losses of
            different maps, or of one at different temperatures, do not compare. None without labels.
        eps_perplexity: perplexity with a share of the uniform distribution mixed in, in classes a target; it does
            compare. None without labels.
        support: classes with nonzero probability, a position; None where the output is no scores of classes.
    """

    divergence: float
    targets: int
    loss: float | None = None
    eps_perplexity: float | None = None
    support: float | None = None


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

    @classmethod
    def of(cls, means: HeadMeans) -> LayerQuality:
        """The mean over heads."""
        values = (means.error, means.divergence, means.support, means.dense_support)
        return cls(*(float(value.mean()) for value in values))


@dataclass
class _Sums:
    """Sums over the positions of all batches, and the mean of the dense outputs where those are states."""

    uniform_share: float
    config: SparseConfig
    targets: int = 0
    distance: float = 0.0
    scale: float = 0.0
    mean: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float32, device="cpu"))
    labelled: list[float] = field(default_factory=lambda: [0.0, 0.0])
    support: float = 0.0
    seen: tuple[bool, bool] = (False, False)

    def add(self, own: Answer, dense: Answer, head: MapConfig, measure: str) -> None:
        """Add the answers of one batch, some rows at a time; ``head`` maps the logits among them."""
        if measure == "states":
            self._add_states(own.rows, dense.rows)
        size = max(1, _NUMBERS // own.rows.shape[-1])
        for some, beside in zip(own.split(size), dense.split(size), strict=True):
            self._add_rows(some, beside, head, measure)

    def _add_states(self, own: Tensor, dense: Tensor) -> None:
        lost, variance = lost_variance(own, dense)
        self.distance, self.scale = self.distance + float(lost), self.scale + float(variance)
        if self.targets:
            self.scale += between(self.targets, self.mean, dense)
        self.mean = self.mean + (dense.mean(0) - self.mean) * (len(dense) / (self.targets + len(dense)))

    def _add_rows(self, own: Answer, dense: Answer, head: MapConfig, measure: str) -> None:
        self.seen = (own.target is not None, own.is_logits)
        self.targets += len(own.rows)
        q = distribution(head, own.rows) if own.is_logits else own.rows
        if measure in DIVERGENCES:
            self.distance += float(DIVERGENCES[measure](q, dense.rows.softmax(-1)).sum())
            self.scale += len(q)
        if own.is_logits:
            self.support += float(support_size(q).sum())
        if own.target is not None:
            factor = replace(self.config, head=head).loss_factor
            self.labelled[0] += factor * float(head.loss()(own.rows, own.target, reduction="sum"))
            perplexity = eps_perplexity(q, own.target, uniform_share=self.uniform_share)
            self.labelled[1] += float(perplexity.log()) * len(own.target)

    def quality(self) -> Quality:
        """The means.

        Raises:
            ValueError: outputs whose distance has nothing to be measured by.
        """
        labelled, is_logits = self.seen
        loss, log_perplexity = (total / self.targets for total in self.labelled)
        if self.distance > 0 and self.scale == 0:
            raise ValueError(
                "the dense model's outputs do not differ, so no share of their variance is lost; give batches of more "
                "rows, or more than one to judge on"
            )
        return Quality(
            self.distance / self.scale if self.scale else 0.0,
            self.targets,
            loss if labelled else None,
            math.exp(log_perplexity) if labelled else None,
            self.support / self.targets if is_logits else None,
        )


@dataclass
class Judge:
    """The batches on which settings are judged, and how.

    Attributes:
        model: a sparse model, in evaluation mode.
        batches: keyword arguments for forward calls.
        measure: ``"eps_kl"``, ``"js"``, ``"states"``; ``"auto"`` becomes the first or, without scores of
            classes, the last.
        uniform_share: share of the uniform distribution in eps-perplexities.
        dense: attention of the model to compare with: softmax everywhere, or nothing where it stays as it is.
        advance: called after every forward call.
    """

    model: PreTrainedModel
    batches: Sequence[Batch]
    measure: str
    uniform_share: float
    dense: MapsByPath
    advance: Callable[[], object]

    def __call__(self, trials: Sequence[Trial]) -> tuple[Quality, list[Quality]]:
        """The quality of the dense model, and of each trial.

        Raises:
            ValueError: no target counts, a measure that does not fit the output, or states that do not differ.

        Cost: a forward pass for the dense model, and one for each choice of attention among the trials.
        """
        softmax_head = MapConfig("softmax")
        by_attention: dict[tuple[object, ...], list[int]] = {}
        for number, each in enumerate(trials):
            by_attention.setdefault(tuple(sorted(each.attention.items())), []).append(number)
        sums = [_Sums(self.uniform_share, sparse_config(self.model)) for _ in (None, *trials)]
        for batch in self.batches:
            with trial(self.model, self.dense):
                dense = answer(self.model, batch)
            self.advance()
            self.measure = self._fitting(dense)
            for numbers in by_attention.values():
                with trial(self.model, {**self.dense, **trials[numbers[0]].attention}):
                    own = answer(self.model, batch)
                self.advance()
                for number in numbers if len(own.rows) else ():
                    sums[number + 1].add(own, dense, trials[number].head or softmax_head, self.measure)
            if len(dense.rows):
                sums[0].add(dense, dense, softmax_head, self.measure)
        if sums[0].targets == 0:
            raise ValueError(
                "no target counts in the model's loss: every label is ignored once labels are shifted, or every "
                "position is padding"
            )
        dense_quality, *qualities = [each.quality() for each in sums]
        return dense_quality, qualities

    def _fitting(self, dense: Answer) -> str:
        if self.measure == "auto":
            return "eps_kl" if dense.is_logits else "states"
        if self.measure in DIVERGENCES and not dense.is_logits:
            raise ValueError(
                f"measure={self.measure!r} compares distributions, and {type(self.model).__name__} returns none here; "
                "choose 'states'"
            )
        if self.measure == "states" and dense.of_places:
            raise ValueError(
                f"measure='states' compares vectors of one width, and {type(self.model).__name__} scores the "
                "positions of each batch; choose 'eps_kl', or give its encoder"
            )
        return self.measure
