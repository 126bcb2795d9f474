"""The settings of a sparse head: a temperature by its own loss, or alpha and temperature for a stated goal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import MapConfig
from ..config.settings import COLDEST, HOTTEST
from ..functional import entmax_threshold
from ..metrics import eps_perplexity, support_size
from ..model.distribution import distribution
from ._closeness import UNIFORM, eps_kl
from ._fit import alpha_of
from ._temperature import best_temperatures

# Alphas that a head may get for a goal, besides its own.
HEAD_ALPHAS = (1.1, 1.2, 1.3, 1.5, 2.0)
# A class enters the support above its temperature, not at it; float32 tells apart what differs by as much.
_ABOVE = 1 + 1e-5


@dataclass(frozen=True)
class Goal:
    """What a head is fitted for; one of the two, or neither.

    Attributes:
        coverage: probability with which the support holds the observed class, in (0, 1).
        classes: mean number of classes with nonzero probability.
    """

    coverage: float | None = None
    classes: float | None = None

    def __bool__(self) -> bool:
        return self.coverage is not None or self.classes is not None

    def check(self, head: MapConfig | None, fit_alpha: bool) -> tuple[float, ...]:
        """The alphas to try for it, none without a goal, and the head's own alone unless another may be chosen.

        Raises:
            ValueError: both goals, or a head that has no alpha to choose.
        """
        if not self:
            return ()
        if self.coverage is not None and self.classes is not None:
            raise ValueError("coverage and classes are two goals for one head; give one of them")
        own = None if head is None else alpha_of(head)
        if own is None or own <= 1:
            raise ValueError(
                "coverage and classes choose alpha and temperature of a head of the entmax family with alpha above 1; "
                f"this one is {'softmax' if head is None else head.to_dict()}: call unsparsify(model), then "
                "sparsify(model, head='entmax15') with the attention that it has"
            )
        return tuple(sorted({*HEAD_ALPHAS, own})) if fit_alpha else (own,)


def for_coverage(entries: Mapping[float, Tensor], coverage: float, logits: Tensor) -> MapConfig:
    """The alpha-entmax with the fewest classes whose support holds the observed class with a given probability.

    For every alpha the temperature is the ``ceil((n + 1) coverage)``-th smallest of those at which the n observed
    classes enter the support. For one more target, exchangeable with them, the support holds its class with
    probability at least ``coverage``, over the draw of all ``n + 1`` (and at most ``1 / (n + 1)`` more where no two
    temperatures are equal).

    Args:
        entries: ``entry_temperature`` of all n targets by alpha.
        coverage: in (0, 1).
        logits: a sample (N, V), on which classes are counted.

    Raises:
        ValueError: fewer targets than a promise of this coverage takes.

    Source: Campos et al. 2025; Vovk et al. 2005, split conformal prediction.
    """
    n = len(next(iter(entries.values())))
    rank = math.ceil((n + 1) * coverage - 1e-9)
    if rank > n:
        raise ValueError(
            f"coverage={coverage:g} takes at least {math.ceil(coverage / (1 - coverage) - 1e-9)} targets, the loader "
            f"has {n}; give more batches"
        )
    # Where the likeliest class is right as often as that, every temperature will do.
    above = {alpha: max(float(each.kthvalue(rank).values) * _ABOVE, COLDEST) for alpha, each in entries.items()}
    heads = [entmax_head(alpha, temperature) for alpha, temperature in above.items()]
    return min(heads, key=lambda head: mean_classes(head, logits))


def for_classes(
    alphas: tuple[float, ...], classes: float, logits: Tensor, target: Tensor | None, p: Tensor
) -> MapConfig:
    """The alpha-entmax closest to the data among those with a mean number of classes.

    Args:
        alphas: to choose from.
        classes: mean number of classes, at least 1.
        logits: a sample (N, V).
        target: observed classes (N,): the smallest negative log-likelihood wins, with ``UNIFORM`` mixed in; or None:
            the smallest divergence from p does.
        p: dense distributions (N, V).

    Raises:
        ValueError: more classes than there are, or fewer than any temperature leaves.
    """
    if classes > logits.shape[-1]:
        raise ValueError(f"classes must be at most {logits.shape[-1]}, the number there are, was {classes:g}")
    heads = [entmax_head(alpha, _temperature_for(alpha, classes, logits)) for alpha in alphas]
    found = [mean_classes(head, logits) for head in heads]
    if min(found) > classes:
        raise ValueError(
            f"classes={classes:g} is out of reach: at the lowest temperature {min(found):.4g} are possible, whose "
            "scores are equal or nearly so; ask for more"
        )
    reached = [head for head, each in zip(heads, found) if each <= classes]
    return min(reached, key=lambda head: _cost(distribution(head, logits), target, p))


def _cost(q: Tensor, target: Tensor | None, p: Tensor) -> float:
    if target is None:
        return float(eps_kl(q, p).mean())
    return float(eps_perplexity(q, target, uniform_share=UNIFORM))


def _temperature_for(alpha: float, classes: float, logits: Tensor) -> float:
    """The largest temperature, to 0.1 %, with at most a mean number of classes; supports grow with it."""
    low, high = COLDEST, HOTTEST
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if mean_classes(entmax_head(alpha, middle), logits) <= classes else (low, middle)
    return low


def entmax_head(alpha: float, temperature: float) -> MapConfig:
    """alpha-entmax at a temperature, rounded up to seven digits."""
    return MapConfig.parse({"name": "entmax", "alpha": alpha, "temperature": float(f"{temperature:.7g}")}, "head")


def mean_classes(head: MapConfig, logits: Tensor) -> float:
    """The mean number of classes of nonzero probability."""
    return sum(float(support_size(head(z)).sum()) for z in logits.split(128)) / len(logits)


def fit_head(map_config: MapConfig, logits: Tensor, p: Tensor) -> MapConfig:
    """A head's map at the temperature where its own loss against the dense distributions p is smallest.

    For a map q and its loss L, ``L(z / T, p)`` is convex in ``1 / T`` and zero only for ``q = p``; at its minimum
    q and p agree on the mean score, ``E_q[z] = E_p[z]``. A threshold that is held fixed is, at every temperature, the
    mean of those entmax would find. A map that is not blind to a constant in its scores is fitted centered and not,
    and the better of the two is taken.

    Args:
        map_config: the head's map.
        logits: raw scores (N, V).
        p: dense distributions (N, V).

    Source: Blondel et al. 2020, Proposition 2 (properties of Fenchel-Young losses).
    """
    if map_config.name == "softmax":
        return map_config
    ways = (
        [map_config]
        if map_config.map.shift_invariant
        else [map_config.with_settings(centered=way) for way in (True, False)]
    )
    fitted = [_at_best_temperature(way, logits, p) for way in ways]
    return min(fitted, key=lambda each: float(each.loss()(logits, p)))


def _at_best_temperature(map_config: MapConfig, logits: Tensor, p: Tensor) -> MapConfig:
    def at(temperature: Tensor) -> MapConfig:
        return with_mean_threshold(map_config.with_settings(temperature=float(temperature)), logits)

    best = best_temperatures(
        lambda temperature: at(temperature).loss()(logits, p)[None],
        torch.tensor([8.0], dtype=torch.float32, device="cpu"),
    )
    return at(best)


def with_mean_threshold(map_config: MapConfig, logits: Tensor) -> MapConfig:
    """The same map, with tau the mean of the thresholds of its scores, if it has a tau."""
    if "tau" not in map_config.map_settings:
        return map_config
    return map_config.with_settings(tau=float(thresholds(map_config, logits).mean()))


def thresholds(map_config: MapConfig, logits: Tensor) -> Tensor:
    """The thresholds (...) entmax finds for the scores that an alpha-ReLU head makes of its logits (..., V)."""
    return entmax_threshold(map_config.scores(logits), map_config.map_settings["alpha"]).squeeze(-1)
