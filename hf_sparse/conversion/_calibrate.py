"""calibrate: the temperatures, alphas and threshold at which a sparse model is closest to the dense one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..attention import attention_sites
from ..attention.site import trial
from ..config import MapConfig, SparseConfig
from ..functional.arguments import check_flag, check_number
from ..model.attach import change_settings
from ..model.audit import audit
from ..model.dry_run import as_it_runs, eager_evaluation
from ..model.find import check_whole, divides_heads, is_sparse, sparse_config, sparse_state
from ._batches import Answer, Batch, answer, has_labels, on_device, read_batches, split
from ._closeness import check_measure
from ._fit import ALPHAS, cheapest, levels_of, share_of_edges
from ._fit_head import Goal, fit_head, for_classes, for_coverage
from ._head_rows import HeadRows, entry_temperature
from ._measure import Judge, LayerQuality, Trial
from ._results import CalibratedLayer, Calibration
from ._rules import MapsByPath, rules
from ._scores import SiteScores, record

logger = logging.getLogger(__name__)


def calibrate(
    model: nn.Module,
    dataloader: Iterable[Any],
    *,
    edges: float | None = None,
    coverage: float | None = None,
    classes: float | None = None,
    per_head: bool = True,
    fit_attention: bool = True,
    fit_alpha: bool = True,
    measure: str = "auto",
    max_batches: int | None = 32,
    max_seconds: float | None = None,
    uniform_share: float = 1e-4,
    progress: bool = True,
) -> Calibration:
    """Fit the settings of a sparse model's maps so that it is as close as can be to the dense model it was.

    No weight changes. Attention first: from the dense model's scores, recorded in one pass, each head gets the
    temperature at which its weights q are closest to its softmax p, in ``||q - p||^2``, and the alpha at which that
    costs least for the keys it keeps. Then, under that attention, the head: without a goal the temperature at which
    its loss against the dense model's distribution is smallest (alpha-ReLU's with its tau, centered or not, whichever
    is closer), with one alpha and temperature together. Softmax stays softmax.

    Settings are fitted on three quarters of the batches and judged on the others: of what attention was and what was
    fitted, the closest output wins, and without a goal the head keeps its settings where fitted ones are no closer.

    Args:
        model: what ``sparsify`` returned. Changed in place: the settings of its maps, which are saved with it.
        dataloader: yields keyword arguments for the model's forward, with labels or without; read from the start.
        edges: largest share of attention's visible keys that may keep weight, in (0, 1], on the dense model's scores
            of the batches to fit on; the sparse model keeps somewhat more or fewer. None keeps as many as the maps do
            at the temperatures that suit them.
        coverage: probability, in (0, 1), that the head's support holds the observed class: marginal, for targets that
            are exchangeable with those of the loader. Labels are needed, and an entmax head.
        classes: in place of ``coverage``, the mean number of classes that the head leaves possible.
        per_head: settings for each head of attention instead of for each layer.
        fit_attention: False leaves attention as it is and fits the head alone, beside a softmax head under the same
            attention: for attention that was trained sparse, which softmax does not resemble.
        fit_alpha: attention gets other alphas too, and the head if it has a goal; False keeps those of their maps: in
            attention one for all heads is fastest, and a head that was trained sparse fits its data best at its own.
        measure: of closeness: ``"eps_kl"``, ``"js"`` (Jensen-Shannon), ``"states"`` (share of the variance of hidden
            states that is lost), or ``"auto"``, the first for scores of classes and the last for other outputs.
        max_batches: how many batches to read; None reads all.
        max_seconds: of wall time for the settings: after a third of it no further batch is read to fit on, after half
            of it no further alpha is tried. The batches held out are measured whatever it takes. None takes the time.
        uniform_share: share of the uniform distribution that is mixed in for the eps-perplexities of the report, in
            (0, 1).
        progress: show a progress bar.

    Returns:
        A ``Calibration``: divergence and supports of the dense model and of the sparse one before and after, over all
        and for each layer of attention. Print it.

    Raises:
        ValueError: a dense model or a part of a sparse one, an adapter of PEFT that is a prompt, an empty loader,
            labels in some batches only or none that count in those to fit on, a temperature that is learned, a map of
            attention whose weights do not sum to one or have bounds, nothing to fit without attention, an argument
            out of range, a goal out of reach, or of attention that no query reaches, a measure that does not fit the
            model's output, a fused loss of soft-capped logits that would have to be centered, or attention under
            tensor parallelism. The model is then as it was.
        TypeError: a loader that does not yield mappings.

    Cost: with four batches or more at most three forward passes over the data, one of them with scores materialized,
    and about a hundred evaluations of the maps on 96 queries of each head. Memory: 256 MiB for scores,
    256 MiB for the head. The same data give the same settings.
    """
    sparse = as_it_runs(model)
    if not is_sparse(model):
        raise ValueError(f"this {type(sparse).__name__} is dense; call sparsify(model, ...) before calibrate")
    check_whole(model)
    config = sparse_config(model)
    goal = Goal(coverage, classes)
    _check(edges, goal, measure, max_seconds, uniform_share)
    check_flag("per_head", per_head)
    check_flag("fit_attention", fit_attention)
    check_flag("fit_alpha", fit_alpha)
    if goal and sparse.get_output_embeddings() is None:
        name = type(sparse).__name__
        raise ValueError(f"coverage and classes are goals for an LM head, and {name} has none; leave them out")
    alphas = goal.check(config.head, fit_alpha)
    if fit_attention:
        _check_maps(config.attention_maps)
        if config.attn and divides_heads(sparse):
            raise ValueError(
                f"tensor parallelism divides the attention heads of this {type(sparse).__name__}, and each process "
                "would find settings of its own: calibrate the model in one process, or pass fit_attention=False"
            )
    else:
        _check_head_alone(config.head, edges)
    batches = read_batches(dataloader, max_batches, "" if coverage is None else "coverage")
    fit, judged = split(batches)
    own = {site.path: site.map_config for _, site in attention_sites(sparse) if fit_attention}
    if edges is not None and all(each is None or each.name == "softmax" for each in own.values()):
        raise ValueError(
            "edges is for attention, and this model's is dense: call unsparsify(model), then sparsify(model, "
            "attn=...) with the head that it has"
        )
    passes = len(fit) * (1 + bool(own and config.head)) + len(judged) * (4 * bool(own) + 2 * bool(config.head))
    with eager_evaluation(sparse), tqdm(total=passes, desc="calibrate", disable=not progress) as bar:
        judge = Judge(sparse, judged, measure, uniform_share, dict.fromkeys(own), bar.update)
        tried = ALPHAS if fit_alpha else ()
        clock = Clock(max_seconds)
        work = _Fitting(sparse, judge, len(batches) > 1, clock, own, per_head, tried, edges, bool(config.head))
        work.read(fit)
        report = work.report(config.head, goal, alphas)
        bar.total = bar.n
        bar.refresh()
    head = work.head
    fitted = replace(config, attn=rules(sparse, work.fitted) or config.attn, head=head)
    _land(sparse, config, fitted, on_device(sparse, batches[0]))
    if coverage is not None:
        sparse_state(model).metrics["head_coverage"] = coverage
    logger.info("calibrated %s", report)
    return report


def _check_maps(maps: Iterable[MapConfig]) -> None:
    """Refuse maps of attention that cannot be fitted to softmax."""
    for map_config in maps:
        if "temperature" in map_config.learned:
            raise ValueError(
                "a temperature of attention is learned, where calibrate would fix it: calibrate first, then call "
                "learn_settings(model)"
            )
        if map_config.is_constrained:
            raise ValueError(
                f"calibrate fits the weights of each query by themselves, and those of {map_config.name} depend on "
                "what earlier queries spent; train the model with it, or calibrate it with another map"
            )
        if not map_config.map.normalized:
            raise ValueError(
                f"calibrate fits attention weights to softmax's, which sum to one, and those of {map_config.name} do "
                "not; train the model with it, or give calibrate a model whose attention it can fit"
            )


def _check_head_alone(head: MapConfig | None, edges: float | None) -> None:
    """Refuse to leave attention as it is where there is nothing else to fit, or a goal of attention."""
    if edges is not None:
        raise ValueError("edges is a goal of attention, which fit_attention=False leaves as it is; give one of them")
    if head is None:
        raise ValueError(
            "fit_attention=False fits the head alone, and this model's is dense; sparsify the model with a head, or "
            "leave fit_attention out"
        )


def _check(edges: float | None, goal: Goal, measure: str, max_seconds: float | None, uniform_share: float) -> None:
    check_measure(measure, uniform_share)
    if edges is not None:
        check_number("edges", edges, "in (0, 1], or None", lambda edges: 0 < edges <= 1)
    if goal.coverage is not None:
        check_number("coverage", goal.coverage, "in (0, 1), or None", lambda coverage: 0 < coverage < 1)
    if goal.classes is not None:
        check_number("classes", goal.classes, ">= 1 and finite, or None", lambda classes: 1 <= classes < math.inf)
    if max_seconds is not None:
        check_number("max_seconds", max_seconds, "> 0, or None", lambda seconds: seconds > 0)


@dataclass
class Clock:
    """A time budget, from when it is made.

    Attributes:
        seconds: None never ends.
    """

    seconds: float | None
    start: float = field(default_factory=time.monotonic)

    def before_end(self, items: Iterable[Any], share: float) -> Iterator[Any]:
        """The items that are begun before a share of the time is over; always the first."""
        for number, item in enumerate(items):
            if number and self.over(share):
                return
            yield item

    def over(self, share: float) -> bool:
        """Whether a share of the time is over."""
        return self.seconds is not None and time.monotonic() - self.start > share * self.seconds


@dataclass
class _Fitting:
    """The course of one calibration.

    Attributes:
        model: a sparse model, in evaluation mode.
        judge: measures choices.
        held_out: whether it does on batches that nothing is fitted on.
        clock: the time budget.
        own: the maps of attention that the model came with, by path; none where attention stays as it is.
        per_head: settings for each head instead of for each layer.
        alphas: to try besides that of each map.
        edges: the goal of attention, or None.
        has_head: whether the head is sparse.
        fitted: the maps of attention that it gets.
        head: the map of its head.
    """

    model: PreTrainedModel
    judge: Judge
    held_out: bool
    clock: Clock
    own: dict[str, MapConfig | None]
    per_head: bool
    alphas: tuple[float, ...]
    edges: float | None
    has_head: bool
    fitted: MapsByPath = field(default_factory=dict)
    head: MapConfig | None = None
    batches: list[Batch] = field(default_factory=list)
    scores: dict[str, SiteScores] = field(default_factory=dict)

    def read(self, batches: list[Batch]) -> None:
        """Run the dense model over the data, and keep its scores and a sample of its logits."""
        self.rows = HeadRows(len(batches))

        def each(batch: Batch, given: Answer) -> None:
            self.batches.append(batch)
            if self.has_head and given.is_logits:
                self.rows.add(given)
            self.judge.advance()

        paths = [path for path, map_config in self.own.items() if map_config and map_config.name != "softmax"]
        read = self.clock.before_end(batches, share=0.3)
        self.scores = record(self.model, read, len(batches), paths, self.judge.dense, each)

    def report(self, own_head: MapConfig | None, goal: Goal, alphas: tuple[float, ...]) -> Calibration:
        """Choose settings; ``fitted`` and ``head`` hold them afterwards."""
        candidates = self._candidates()
        dense, qualities = self.judge([Trial(self.own, own_head), *(Trial(each) for each in candidates)])
        before, *of_candidates = qualities
        # Where several are equally good, the last one: the maps that attention has already.
        best = min(reversed(range(len(candidates))), key=lambda number: of_candidates[number].divergence)
        self.fitted, after = candidates[best], of_candidates[best]
        if own_head is not None:
            self.head = self._fit_head(own_head, goal, alphas)
            _, (kept, after) = self.judge([Trial(self.fitted, own_head), Trial(self.fitted, self.head)])
            if not goal and kept.divergence <= after.divergence:
                self.head, after = own_head, kept
        return Calibration(
            model=type(self.model).__name__,
            measure=self.judge.measure,
            uniform_share=self.judge.uniform_share,
            held_out=self.held_out,
            dense=dense,
            before=before,
            after=after,
            layers=self._layers(),
            head=None if self.head is None else self.head.to_dict(),
            coverage=goal.coverage,
        )

    def _candidates(self) -> list[MapsByPath]:
        """What attention may become: what it was; other temperatures; other alphas too. Only what meets the goal."""
        if not self.scores:
            if self.edges is not None:
                raise ValueError(
                    f"edges={self.edges} is for attention, and no query of sparse attention counts in the batches to "
                    "fit on: all are padding, or nothing reaches it (cross-attention without an encoder's states)"
                )
            return [self.own]
        levels = {
            path: levels_of(each, own, self.per_head, self._alphas_in_time(), self.edges is not None)
            for path, each in self.scores.items()
            if (own := self.own[path]) is not None
        }
        asked = {path: each.asked for path, each in levels.items()}
        goal = self.edges or share_of_edges(self.scores, asked) * (1 + 1e-6)
        simpler = [self.own | asked, self.own]
        return [
            self.own | cheapest(levels, goal),
            *(maps for maps in simpler if self.edges is None or share_of_edges(self.scores, maps) <= self.edges),
        ]

    def _alphas_in_time(self) -> tuple[float, ...]:
        return () if self.clock.over(0.5) else self.alphas

    def _fit_head(self, own: MapConfig, goal: Goal, alphas: tuple[float, ...]) -> MapConfig:
        logits, p, target, entries = self._head_data(alphas if goal.coverage is not None else ())
        if goal.coverage is not None:
            return for_coverage(entries, goal.coverage, logits)
        if goal.classes is not None:
            return for_classes(alphas, goal.classes, logits, target, p)
        return fit_head(own, logits, p)

    def _head_data(self, alphas: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor | None, Mapping[float, Tensor]]:
        """Logits under the chosen attention, dense distributions, targets, and entry temperatures by alpha."""
        rows = HeadRows(self.rows.num_batches)  # the same positions as those of the dense distributions
        found = {alpha: [torch.empty(0, dtype=torch.float32, device="cpu")] for alpha in alphas}

        def each(batch: Batch, given: Answer) -> None:
            rows.add(given)
            for alpha in alphas:
                assert given.target is not None  # read_batches has seen to it
                found[alpha].append(entry_temperature(given.rows, given.target, alpha).cpu())

        for batch in self.batches:
            with trial(self.model, {**self.judge.dense, **self.fitted}):
                each(batch, answer(self.model, batch))
            self.judge.advance()
        target = rows.targets if has_labels(self.batches) else None
        entries = {alpha: torch.cat(each) for alpha, each in found.items()}
        return rows.logits, self.rows.logits.softmax(-1), target, entries

    def _layers(self) -> list[CalibratedLayer]:
        layers = []
        for path, scores in self.scores.items():
            before, after = self.own[path], self.fitted[path]
            assert before is not None
            assert after is not None
            layers.append(
                CalibratedLayer(
                    path,
                    scores.site.kind,
                    scores.heads,
                    _alphas(after),
                    after.temperature,
                    LayerQuality.of(scores.means(before)),
                    LayerQuality.of(scores.means(after)),
                )
            )
        return layers


def _alphas(map_config: MapConfig) -> float | tuple[float, ...] | None:
    numbers = map_config.value("alpha").numbers if "alpha" in map_config.map_settings else ()
    return numbers[0] if len(numbers) == 1 else numbers or None


def _land(model: PreTrainedModel, old: SparseConfig, new: SparseConfig, example: Batch) -> None:
    state = sparse_state(model)
    with ExitStack() as undo:
        undo.callback(setattr, state, "metrics", state.metrics)
        undo.callback(change_settings, model, old)
        change_settings(model, SparseConfig.from_dict(new.to_dict()))
        if new.fused_loss:
            audit(model, example)
        undo.pop_all()  # all is well: keep them
