"""compare: what a model would lose by becoming sparse, head by head, without changing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..attention import attention_sites
from ..attention.site import trial
from ..config import MapConfig, SparseConfig
from ..functional.arguments import check_number
from ..model.attach import kept_configs
from ..model.dry_run import as_it_runs, eager_evaluation
from ..model.find import check_dense, divides_heads, sparse_config
from ..model.sparsify import sparsify, unsparsify
from ._batches import Answer, Batch, answer, on_device, read_batches, split
from ._closeness import check_measure
from ._fit import fit_temperatures
from ._fit_head import fit_head
from ._head_rows import HeadRows
from ._measure import Judge, Trial
from ._results import Comparison, SparseHead
from ._rules import MapsByPath, all_softmax, rules
from ._scores import SiteScores, record

# Alphas to try below the one that was asked for.
_ALPHAS = (1.25, 1.5)
# Measurements in search of the most zeros within the budget.
_ROUNDS = 5


def compare(
    model: nn.Module,
    dataloader: Iterable[object],
    attn: Any = None,
    head: Any = None,
    *,
    budget: float = 0.01,
    measure: str = "auto",
    max_batches: int | None = 4,
    uniform_share: float = 1e-4,
    progress: bool = True,
) -> Comparison:
    """Measure what ``sparsify(model, attn, head)`` would cost, and recommend a call that costs less.

    From the dense model's scores, recorded in one pass, every attention head is fitted at several alphas with the
    temperature that suits it at each. Heads are then given their alpha one after the other, where a zero costs the
    least of their own weights, as long as the measured divergence of the model's output stays within the budget.

    Args:
        model: a dense Transformers model, or a PEFT model around one. Left as it was.
        dataloader: yields keyword arguments for the model's forward, with labels or without; read from the start.
        attn: as for ``sparsify``, with maps of the entmax family; the alphas tried go up to the one asked for.
        head: as for ``sparsify``. Its temperature, and tau, are fitted as by ``calibrate``.
        budget: largest divergence of the model's output from the dense model's with the recommended attention and the
            dense head, by ``measure``: nats a position, or a share of the variance.
        measure: of closeness, see ``calibrate``.
        max_batches: how many batches to read; None reads all.
        uniform_share: share of the uniform distribution that is mixed in for the eps-perplexities, in (0, 1).
        progress: show a progress bar.

    Returns:
        A ``Comparison``; print it, or draw it with ``plot_head_errors``.

    Raises:
        ValueError: a model that is sparse already, an adapter of PEFT that is a prompt, a map outside the entmax
            family, an alpha for each head, a loader that is empty, labels in some batches only, a budget below 0, a
            measure that does not fit the model's output, attention under tensor parallelism; and what ``sparsify``
            refuses.
        TypeError: a loader that does not yield mappings.

    Cost: two forward passes over three quarters of the batches, and at most fifteen over the others.
    """
    dense_model: Any = as_it_runs(model)
    check_dense(dense_model)
    check_number("budget", budget, ">= 0", lambda budget: budget >= 0)
    check_measure(measure, uniform_share)
    if attn is not None and divides_heads(dense_model):
        raise ValueError(
            f"tensor parallelism divides the attention heads of this {type(dense_model).__name__}, and each process "
            "would compare its own: compare in one process, or give a head alone"
        )
    batches = read_batches(dataloader, max_batches)
    with ExitStack() as undo:
        undo.enter_context(kept_configs(dense_model))
        sparsify(dense_model, attn, head, example=on_device(dense_model, batches[0]))
        undo.callback(unsparsify, dense_model)
        with eager_evaluation(dense_model), tqdm(desc="compare", disable=not progress) as bar:
            fit, judged = split(batches)
            judge = Judge(dense_model, judged, measure, uniform_share, all_softmax(dense_model), bar.update)
            return _compared(dense_model, fit, judge, budget)


def _compared(model: PreTrainedModel, fit: list[Batch], judge: Judge, budget: float) -> Comparison:
    own: MapsByPath = {site.path: site.map_config for _, site in attention_sites(model) if site.map_config is not None}
    asked_alphas = {path: _alpha(path, map_config) for path, map_config in own.items()}
    dense_rows = HeadRows(len(fit))
    head = sparse_config(model).head

    def each(batch: Batch, given: Answer) -> None:
        judge.advance()
        if head is not None:
            dense_rows.add(given)

    scores = record(model, fit, len(fit), own, judge.dense, each)
    heads = [tried for path, alpha in asked_alphas.items() if path in scores for tried in _tried(scores[path], alpha)]
    chosen = _maps(_within(heads, budget, judge))
    trials: dict[str, Trial] = {}
    if own:
        trials["attention"] = Trial(own)
        trials["attention, fitted"] = Trial(_maps(_highest(heads)))
        trials["attention, recommended"] = Trial(chosen)
    fitted = head
    if head is not None:
        fitted = _fitted_head(model, fit, chosen, head, dense_rows, judge)
        trials["head"] = Trial({}, head)
        trials["head, fitted"] = Trial({}, fitted)
    dense, (*qualities, recommended) = judge([*trials.values(), Trial(chosen, fitted)])
    attn = SparseConfig(rules(model, chosen)).to_dict()["attn"]
    return Comparison(
        type(model).__name__,
        judge.measure,
        judge.uniform_share,
        budget,
        dense,
        dict(zip(trials, qualities)),
        recommended,
        heads,
        {"attn": attn, "head": fitted and fitted.to_dict()},
    )


def _fitted_head(
    model: PreTrainedModel, fit: list[Batch], chosen: MapsByPath, head: MapConfig, dense: HeadRows, judge: Judge
) -> MapConfig:
    """The head's map at its best temperature under the chosen attention."""
    rows = HeadRows(len(fit))
    for batch in fit:
        with trial(model, {**judge.dense, **chosen}):
            rows.add(answer(model, batch))
        judge.advance()
    return fit_head(head, rows.logits, dense.logits.softmax(-1))


def _tried(scores: SiteScores, asked: float) -> Iterator[SparseHead]:
    """Every head of a site at every alpha up to the one asked for, with its temperature, error and zeros."""
    site = scores.site
    for alpha in sorted({*(each for each in _ALPHAS if each < asked), asked} - {1.0}):
        entmax = MapConfig.parse({"name": "entmax", "alpha": alpha}, "attn")
        temperatures, means = fit_temperatures(scores, entmax, per_head=True)
        errors, zeros = means.error / means.length, means.dense_support - means.support
        for head, values in enumerate(zip(temperatures.tolist(), errors.tolist(), zeros.tolist())):
            yield SparseHead(site.path, site.kind, site.layer, head, scores.heads, alpha, *values)


def _alpha(path: str, map_config: Any) -> float:
    alpha = map_config.alpha
    if not map_config.is_entmax or alpha is None:
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


def _within(heads: list[SparseHead], budget: float, judge: Judge) -> list[SparseHead]:
    """The heads to make sparse: as many greedy steps as keep the measured divergence in the budget, by bisection."""
    items: dict[tuple[str, int], list[SparseHead]] = {}
    for each in heads:
        items.setdefault((each.path, each.head), []).append(each)
    levels = list(items.values())
    order = greedy_order([[e.error for e in item] for item in levels], [[e.zeros for e in item] for item in levels])

    def after(steps: int) -> list[SparseHead]:
        return list({item: levels[item][level - 1] for item, level in order[:steps]}.values())

    fit, too_many = 0, len(order) + 1
    for _ in range(_ROUNDS):
        if too_many - fit <= 1:
            break
        steps = (fit + too_many) // 2
        _, (quality,) = judge([Trial(_maps(after(steps)))])
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
