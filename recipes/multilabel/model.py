"""Pairs of a map and a loss, and linear models trained with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

import hf_sparse.functional as F
from hf_sparse.losses import (
    softmax_log_loss,
    sparsegen_lin_hinge_loss,
    sparsehourglass_hinge_loss,
    sparsemax_huber_loss,
)
from hf_sparse.metrics import jensen_shannon, support_size

from .data import Part, Problem

CHECK_EVERY = 10  # steps between two looks at the validation data


class Pair(NamedTuple):
    """A map from scores to probabilities of labels, and the loss that trains it.

    Attributes:
        loss: of scores, labels and the setting.
        probabilities: of scores and the setting.
        settings: values of the setting, of which validation data choose one.
        on_above: thresholds of probability above which a label is on; validation data choose one of these, too.
    """

    loss: Callable[[Tensor, Tensor, float], Tensor]
    probabilities: Callable[[Tensor, float], Tensor]
    settings: tuple[float, ...] = (0.0,)
    on_above: tuple[float, ...] = (0.0,)


PAIRS = {
    # "For softmax+log, we used a threshold p0, above which a label is predicted to be on." Section 5.1
    "softmax+log": Pair(
        lambda z, y, _: softmax_log_loss(z, y),
        lambda z, _: F.softmax(z),
        on_above=tuple(step / 50 for step in range(1, 20)),
    ),
    "sparsemax+huber": Pair(lambda z, y, _: sparsemax_huber_loss(z, y), lambda z, _: F.sparsemax(z)),
    # Eq. 7 at lambda = 0. With a linear model any other lambda gives the same predictions (Section 5.1).
    "sparsemax+hinge": Pair(lambda z, y, _: sparsegen_lin_hinge_loss(z, y), lambda z, _: F.sparsemax(z)),
    # Eq. 6. "We tune hyperparams for sparsehg+hinge and for softmax+log using validation set." Section 5.1
    "sparsehourglass+hinge": Pair(
        lambda z, y, q: sparsehourglass_hinge_loss(z, y, q),
        lambda z, q: F.sparsehourglass(z, q),
        settings=(0.1, 0.3, 1.0, 3.0, 10.0),
    ),
}


def micro_f1(labels: Tensor, on: Tensor) -> float:
    """F1 of the decisions of all rows pooled, ``2 TP / (2 TP + FP + FN)``; 0 if nothing is on and nothing true."""
    right, wrong = int((labels & on).sum()), int((labels ^ on).sum())
    return 2 * right / max(2 * right + wrong, 1)


class Fit(NamedTuple):
    """A trained model with its chosen settings.

    Attributes:
        probabilities: of the labels, from features.
        setting: of the pair.
        on_above: threshold of probability above which a label is on.
        validation_f1: micro F1 on validation data.
    """

    probabilities: Callable[[Tensor], Tensor]
    setting: float
    on_above: float
    validation_f1: float

    def measured(self, part: Part) -> dict[str, float]:
        """Micro F1, Jensen-Shannon divergence (nats) from the even distribution over true labels, support sizes."""
        p = self.probabilities(part.features)
        labels = part.labels.float()
        return {
            "micro_f1": micro_f1(part.labels, p > self.on_above),
            "jensen_shannon": float(jensen_shannon(p, labels / labels.sum(1, keepdim=True))),
            "support_size": float(support_size(p).float().mean()),
            "labels_on": float((p > self.on_above).sum(1).float().mean()),
        }


def fit_linear(problem: Problem, pair: Pair, seed: int, steps: int, lr: float) -> Fit:
    """Train linear models; choose setting, threshold and training step on validation data."""
    return max(_stages(problem, pair, seed, steps, lr), key=lambda fit: fit.validation_f1)


def _stages(problem: Problem, pair: Pair, seed: int, steps: int, lr: float) -> Iterator[Fit]:
    for value in pair.settings:
        torch.manual_seed(seed)
        model = nn.Linear(problem.train.features.shape[1], problem.train.labels.shape[1])
        optimizer = torch.optim.Adam(model.parameters(), lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            pair.loss(model(problem.train.features), problem.train.labels, value).backward()
            optimizer.step()
            schedule.step()
            if step % CHECK_EVERY == 0 or step == steps:
                weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
                predict = partial(_linear_probabilities, weight=weight, bias=bias, pair=pair, setting=value)
                yield best_threshold(predict, value, pair, problem.validation)


def _linear_probabilities(features: Tensor, weight: Tensor, bias: Tensor, pair: Pair, setting: float) -> Tensor:
    return pair.probabilities(nn.functional.linear(features, weight, bias), setting)


def best_threshold(predict: Callable[[Tensor], Tensor], setting: float, pair: Pair, validation: Part) -> Fit:
    """The fit with the threshold of highest micro F1 on validation data."""
    p = predict(validation.features)
    f1 = {on_above: micro_f1(validation.labels, p > on_above) for on_above in pair.on_above}
    best = max(f1, key=f1.__getitem__)
    return Fit(predict, setting, best, f1[best])
