"""compare: what a model would lose by becoming sparse, head by head, without changing it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..attention import attention_sites
from ..config import MapConfig, SparseConfig
from ..functional.arguments import check_number
from ..model.dry_run import quiet_evaluation
from ..model.sparse_model import SparseModel
from ..model.sparsify import sparsify, unsparsify
from ..model.state import sparse_config, transformers_model
from ._batches import Batch, on_device, read_batches
from ._fit import fit_attention, fit_head, head_data
from ._measure import Trial, measure
from ._results import Comparison, SparseHead
from ._rules import MapsByPath, rules

# Alphas to try below the one that was asked for.
_ALPHAS = (1.25, 1.5)


def compare(
    model: nn.Module,
    dataloader: Iterable[object],
    attn: Any = None,
    head: Any = None,
    *,
    budget: float = 0.01,
    max_batches: int | None = 4,
    eps: float = 1e-4,
    progress: bool = True,
) -> Comparison:
    """Measure what ``sparsify(model, attn, head)`` would cost, and recommend a call that costs less.

    Every attention head is made sparse alone, at several alphas and the temperature that suits it at each, and the
    output of the model compared with what it was. Heads are then given their alpha one after the other, where a zero
    costs least first, as long as the measured error of all of them together stays within the budget.

    Args:
        model: a dense Transformers model, or a PEFT model around one. Left as it was.
        dataloader: yields keyword arguments for the model's forward, with labels; read from the start.
        attn: as for ``sparsify``, with maps of the entmax family; the alphas tried go up to the one asked for.
        head: as for ``sparsify``. Its temperature, and tau, are fitted as by ``calibrate``.
        budget: largest ``KL(q || p)`` of the model's output distribution from the dense model's with the recommended
            attention and the dense head, in nats a target.
        max_batches: how many batches to read; None reads all.
        eps: of the eps-perplexities, in units of probability.
        progress: show a progress bar.

    Returns:
        A ``Comparison``; print it, or draw it with ``plot_head_errors``.

    Raises:
        ValueError: a model that is sparse already, a map outside the entmax family, an alpha for each head, a loader
            that is empty or without labels that count, a budget below 0; and what ``sparsify`` refuses.
        TypeError: a loader that does not yield mappings.

    Cost: one forward pass over the data for each head and alpha (288 for 12 layers of 12 heads and two alphas), three
    more for each alpha, and about twenty to find the recommendation.
    """
    dense_model: Any = transformers_model(model)
    if isinstance(dense_model, SparseModel):
        raise ValueError(f"this {type(dense_model).__name__} is sparse already; call unsparsify(model) first")
    check_number("budget", budget, ">= 0", lambda budget: budget >= 0)
    check_number("eps", eps, "> 0 and finite", lambda eps: 0 < eps < math.inf)
    batches = read_batches(dataloader, max_batches)
    sparsify(dense_model, attn, head, example=on_device(dense_model, batches[0]))
    try:
        with quiet_evaluation(dense_model), tqdm(desc="compare", disable=not progress) as bar:
            return _compared(dense_model, batches, budget, eps, bar.update)
    finally:
        unsparsify(dense_model)


def _compared(
    model: PreTrainedModel, batches: list[Batch], budget: float, eps: float, advance: Callable[[], object]
) -> Comparison:
    own: MapsByPath = {site.path: site.map_config for _, site in attention_sites(model) if site.map_config is not None}
    untried = _heads_to_try(model, batches, own, advance)
    trials = [Trial(_maps([each])) for each in untried]
    dense, measured = measure(model, batches, trials, eps, advance)
    heads = []
    for each, (quality, layers) in zip(untried, measured):
        layer = layers.get(each.path)
        if layer is not None:  # a module that these data do not reach costs nothing and gains nothing
            zeros = (layer.dense_support - layer.support) * each.num_heads
            heads.append(replace(each, error=quality.divergence, zeros=zeros))
    chosen = _maps(_within(model, batches, heads, budget, eps, advance))
    asked: dict[str, Trial] = {}
    if own:
        asked["attention"] = Trial(own)
        asked["attention, fitted"] = Trial(_maps(_highest(heads)))
        asked["attention, recommended"] = Trial(chosen)
    head = fitted = sparse_config(model).head
    if head is not None:
        fitted = fit_head(head, *head_data(model, batches, chosen, advance))
        asked["head"] = Trial({}, head)
        asked["head, fitted"] = Trial({}, fitted)
    _, measured = measure(model, batches, [*asked.values(), Trial(chosen, fitted)], eps, advance)
    *qualities, recommended = [quality for quality, _ in measured]
    attn = SparseConfig(rules(model, chosen)).to_dict()["attn"]
    recommendation = {"attn": attn, "head": fitted and fitted.to_dict()}
    name = type(model).__name__
    return Comparison(name, eps, budget, dense, dict(zip(asked, qualities)), recommended, heads, recommendation)


def _heads_to_try(
    model: PreTrainedModel, batches: list[Batch], own: MapsByPath, advance: Callable[[], object]
) -> list[SparseHead]:
    """Every head at every alpha up to the one asked for, with its temperature; errors still to be measured."""
    asked = {path: _alpha(path, map_config) for path, map_config in own.items()}
    alphas = sorted({*_ALPHAS, *asked.values()} - {1.0})
    heads = []
    for alpha in alphas:
        entmax = MapConfig.parse({"name": "entmax", "alpha": alpha}, "attn")
        tried: MapsByPath = {
            path: entmax for path, top in asked.items() if alpha == top or (alpha in _ALPHAS and alpha < top)
        }
        fitted = fit_attention(model, batches, tried, True, advance) if tried else {}
        for _, site in attention_sites(model):
            map_config = fitted.get(site.path)
            if map_config is not None:
                temperatures = map_config.value("temperature").numbers
                heads += [
                    SparseHead(site.path, site.kind, site.layer, head, len(temperatures), alpha, temperature, 0.0, 0.0)
                    for head, temperature in enumerate(temperatures)
                ]
    return heads


def _alpha(path: str, map_config: Any) -> float:
    alpha = map_config.spelled_out.map_settings.get("alpha")
    if map_config.spelled_out.name != "entmax" or not isinstance(alpha, float):
        raise ValueError(
            f"{path}: compare chooses an alpha for each head; give attn a map of the entmax family with one number, "
            f"was {map_config.to_dict()}"
        )
    if map_config.scaled_by_length:
        raise ValueError(f"{path}: compare fits no factor of length; leave delta, beta and gamma out")
    return alpha


def _maps(heads: Iterable[SparseHead]) -> MapsByPath:
    """entmax by path, softmax (alpha = 1) for heads that are not among those given."""
    settings: dict[str, tuple[list[float], list[float]]] = {}
    for each in heads:
        alphas, temperatures = settings.setdefault(each.path, ([1.0] * each.num_heads, [1.0] * each.num_heads))
        alphas[each.head], temperatures[each.head] = each.alpha, each.temperature
    return {path: _entmax(*both) for path, both in settings.items()}


def _entmax(alphas: list[float], temperatures: list[float]) -> MapConfig:
    given: Any = {"alpha": alphas, "temperature": temperatures}
    if len(alphas) == 1:
        given = {"alpha": alphas[0], "temperature": temperatures[0]}
    return MapConfig.parse({"name": "entmax", **given}, "attn")


def _highest(heads: list[SparseHead]) -> list[SparseHead]:
    """Each head at the largest alpha it was tried at."""
    return list({(each.path, each.head): each for each in sorted(heads, key=lambda each: each.alpha)}.values())


def _within(
    model: PreTrainedModel,
    batches: list[Batch],
    heads: list[SparseHead],
    budget: float,
    eps: float,
    advance: Callable[[], object],
) -> list[SparseHead]:
    """The heads to make sparse: as many greedy steps as keep their joint, measured error in the budget."""
    items: dict[tuple[str, int], list[SparseHead]] = {}
    for each in heads:
        items.setdefault((each.path, each.head), []).append(each)
    levels = list(items.values())
    order = greedy_order([[e.error for e in item] for item in levels], [[e.zeros for e in item] for item in levels])

    def after(steps: int) -> list[SparseHead]:
        return list({item: levels[item][level - 1] for item, level in order[:steps]}.values())

    fit, too_many = 0, len(order) + 1
    while too_many - fit > 1:
        steps = (fit + too_many) // 2
        _, ((quality, _),) = measure(model, batches, [Trial(_maps(after(steps)))], eps, advance)
        fit, too_many = (steps, too_many) if quality.divergence <= budget else (fit, steps)
    return after(fit)


def greedy_order(costs: Sequence[Sequence[float]], gains: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Steps ``(item, level)``, each raising one item to a higher level at the least cost for what it gains.

    Every item starts at level 0, which costs and gains nothing. Where costs and gains of items add up and every gain
    of an item costs more than the one before, no choice of levels at the cost of the first n steps gains more.

    Args:
        costs: for each item, what levels 1, 2, ... cost.
        gains: for each item, what they gain; levels that gain no more than a lower one are never taken.

    Returns:
        All steps, cheapest first.

    >>> greedy_order(costs=[[1.0, 5.0], [2.0, 3.0]], gains=[[1.0, 2.0], [1.0, 2.0]])
    [(0, 1), (1, 2), (0, 2)]
    """
    levels = [0] * len(costs)
    order: list[tuple[int, int]] = []
    while True:
        best: tuple[float, int, int] | None = None
        for item, level in enumerate(levels):
            cost, gain = (0.0, 0.0) if level == 0 else (costs[item][level - 1], gains[item][level - 1])
            for higher in range(level + 1, len(costs[item]) + 1):
                gained = gains[item][higher - 1] - gain
                if gained > 0:
                    # A level that costs less than nothing by a rounding error is free.
                    price = max(costs[item][higher - 1] - cost, 0.0) / gained
                    # At the same price the larger step.
                    best = min(best or (price, item, -higher), (price, item, -higher))
        if best is None:
            return order
        _, item, minus_level = best
        levels[item] = -minus_level
        order.append((item, -minus_level))
