"""The results of ``compare`` and ``calibrate``: printed, drawn, stored and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pprint import pformat
from typing import Any

import torch
from torch import Tensor

from ._measure import LayerQuality, Quality


@dataclass(frozen=True)
class SparseHead:
    """One attention head under a sparse map, at the temperature where it is closest to softmax.

    Attributes:
        path: the module's path.
        kind: ``"encoder"``, ``"decoder"`` or ``"cross"``.
        layer: which of its kind, from 0.
        head: which of its layer, from 0.
        num_heads: how many there are in its layer; 1 where a layer does not show its heads.
        alpha: of entmax.
        temperature: what its scores are divided by.
        error: ``||q - p||^2 / ||p||^2`` of its weights q beside softmax's p, on the dense model's scores.
        zeros: keys a query that lose their weight in it.
    """

    path: str
    kind: str
    layer: int
    head: int
    num_heads: int
    alpha: float
    temperature: float
    error: float
    zeros: float


@dataclass(frozen=True)
class Comparison:
    """The findings of ``compare``. Printing it gives tables and a call to ``sparsify``.

    Attributes:
        model: the model's class.
        measure: of divergences, by name; see ``calibrate``.
        uniform_share: of the perplexities.
        budget: on the divergence of the recommended attention.
        dense: the model as it is.
        asked: what each part alone does to it: attention as asked, with fitted temperatures, and as recommended; the
            head as asked, and with fitted settings as it is recommended.
        recommended: the model with recommended attention and head.
        heads: every head alone, at every alpha that was tried.
        recommendation: ``attn`` and ``head`` for ``sparsify``, as plain data; None keeps softmax.
    """

    model: str
    measure: str
    uniform_share: float
    budget: float
    dense: Quality
    asked: dict[str, Quality]
    recommended: Quality
    heads: list[SparseHead]
    recommendation: dict[str, Any]

    @property
    def call(self) -> str:
        """The recommendation as Python, or a remark where nothing fits the budget."""
        given = {role: value for role, value in self.recommendation.items() if value is not None}
        if not given:
            return "# nothing sparse fits the budget"
        lines = ["sparsify(", "    model,"]
        for role, value in given.items():
            shown = pformat(value, width=100, sort_dicts=False)
            lines.append(f"    {role}={shown.replace(chr(10), chr(10) + ' ' * (5 + len(role)))},")
        return "\n".join([*lines, ")"])

    def errors(self, kind: str, alpha: float | None = None) -> Tensor:
        """The error of each head of one kind of attention: (layers, heads); NaN where not tried.

        Args:
            kind: ``"encoder"``, ``"decoder"`` or ``"cross"``.
            alpha: one that was tried; None is the largest that each head was tried at.

        Raises:
            ValueError: nothing of that kind or alpha was tried.
        """
        tried = [each for each in self.heads if each.kind == kind and alpha in (None, each.alpha)]
        if not tried:
            known = sorted({(each.kind, each.alpha) for each in self.heads})
            raise ValueError(f"no head of kind {kind!r} was tried at alpha {alpha}; tried were {known}")
        tried.sort(key=lambda each: each.alpha)
        shape = max(each.layer for each in tried) + 1, max(each.head for each in tried) + 1
        errors = torch.full(shape, torch.nan, dtype=torch.float32, device="cpu")
        for each in tried:
            errors[each.layer, each.head] = each.error
        return errors

    @property
    def kinds(self) -> list[str]:
        """The kinds of attention that were tried."""
        return list(dict.fromkeys(each.kind for each in self.heads))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = {"dense": self.dense, **self.asked, "recommended": self.recommended}
        lines = [f"{self.model} on {_positions(self.dense)}", *_table(rows, self.measure, self.uniform_share)]
        for kind in self.kinds:
            lines.append(f"relative error of each {kind} head's weights, one layer a line")
            lines += [" ".join(f"{error:8.5f}" for error in layer) for layer in self.errors(kind).tolist()]
        lines += [f"attention within {self.measure} {self.budget:g}:", self.call]
        return "\n".join(lines)


@dataclass(frozen=True)
class CalibratedLayer:
    """One layer's attention before and after.

    Attributes:
        path: the module's path.
        kind: ``"encoder"``, ``"decoder"`` or ``"cross"``.
        heads: how many it has; 1 where it does not show them.
        alpha: a number, or one for each head; None where its map is known by another name or has none.
        temperature: a number, or one for each head.
        before: with the settings it had; on the queries that were recorded.
        after: with those it has now.
    """

    path: str
    kind: str
    heads: int
    alpha: float | tuple[float, ...] | None
    temperature: float | tuple[float, ...]
    before: LayerQuality
    after: LayerQuality


@dataclass(frozen=True)
class Calibration:
    """The findings of ``calibrate``. Printing it gives tables.

    Attributes:
        model: the model's class.
        measure: of divergences, by name; see ``calibrate``.
        uniform_share: of the perplexities.
        held_out: whether nothing was fitted on the batches that were measured.
        dense: the model with softmax everywhere.
        before: as it was before calibration.
        after: as it is now.
        layers: each layer of sparse attention.
        head: the head's map with its settings as plain data, None for softmax.
        coverage: probability with which the head's support holds the observed class, over targets exchangeable with
            the loader's; None where that was no goal.
    """

    model: str
    measure: str
    uniform_share: float
    held_out: bool
    dense: Quality
    before: Quality
    after: Quality
    layers: list[CalibratedLayer]
    head: dict[str, Any] | None
    coverage: float | None = None

    @property
    def edges(self) -> float | None:
        """The share of attention's visible keys that keep weight, over its sparse layers; None without any."""
        if not self.layers:
            return None
        kept = sum(layer.heads * layer.after.support for layer in self.layers)
        return kept / sum(layer.heads * layer.after.dense_support for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = {"dense": self.dense, "before": self.before, "after": self.after}
        where = "held out" if self.held_out else "that settings were fitted on"
        lines = [f"{self.model} on {_positions(self.dense)} {where}", *_table(rows, self.measure, self.uniform_share)]
        if self.head is not None:
            lines.append("head: " + ", ".join(f"{key} {_shown(value)}" for key, value in self.head.items()))
        if self.coverage is not None:
            lines.append(
                f"coverage {self.coverage:g}: for targets exchangeable with the loader's, the share of observed "
                "classes in the support; a mean over positions, not a promise for each"
            )
        return "\n".join([*lines, *self._layer_table()])

    def _layer_table(self) -> list[str]:
        if not self.layers:
            return []
        width = max(len(layer.path) for layer in self.layers)
        lines = [f"edges of attention: {self.edges:.1%}"]
        lines.append(f"{'attention':<{width}}{'keys: dense, before, after':>28}{'error: before, after':>22}  settings")
        for layer in self.layers:
            keys = f"{layer.before.dense_support:.1f} {layer.before.support:.1f} {layer.after.support:.1f}"
            errors = f"{layer.before.error:.4f} {layer.after.error:.4f}"
            alpha = "" if layer.alpha is None else f"alpha {_shown(layer.alpha)}, "
            lines.append(
                f"{layer.path:<{width}}{keys:>28}{errors:>22}  {alpha}temperature {_shown(layer.temperature)}"
            )
        return lines


def _positions(dense: Quality) -> str:
    return f"{dense.targets:,} {'positions' if dense.loss is None else 'targets'}"


def _table(rows: Mapping[str, Quality], measure: str, uniform_share: float) -> list[str]:
    """A line a row: divergence and, where they were measured, eps-perplexity, loss and classes."""
    width = max(map(len, rows))
    columns: dict[str, Callable[[Quality], str]] = {measure: lambda each: f"{each.divergence:.4f}"}
    first = next(iter(rows.values()))
    if first.loss is not None:
        columns |= {
            "loss": lambda each: f"{each.loss:.4f}",
            f"ppl (u {uniform_share:g})": lambda each: f"{each.eps_perplexity:.2f}",
        }
    if first.support is not None:
        columns["classes"] = lambda each: f"{each.support:.1f}"
    head = f"{'':<{width}}" + "".join(f"{name:>18}" for name in columns)
    return [
        head,
        *(
            f"{name:<{width}}" + "".join(f"{cell(each):>18}" for cell in columns.values())
            for name, each in rows.items()
        ),
    ]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return " ".join(f"{each:.3g}" for each in value) if isinstance(value, tuple) else str(value)
