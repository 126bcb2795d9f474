"""The results of ``compare`` and ``calibrate``: printed, drawn, stored and run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pprint import pformat
from typing import Any

import torch
from torch import Tensor

from ._measure import LayerQuality, Quality


@dataclass(frozen=True)
class SparseHead:
    """One attention head that alone is sparse, at the temperature where it is closest to softmax.

    Attributes:
        path: the module's path.
        kind: ``"encoder"``, ``"decoder"`` or ``"cross"``.
        layer: which of its kind, from 0.
        head: which of its layer, from 0.
        num_heads: how many there are in its layer; 1 where a layer does not show its heads.
        alpha: of entmax.
        temperature: what its scores are divided by.
        error: ``KL(q || p)`` of the model's output distribution from the dense model's, in nats a target.
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
        eps: of the perplexities.
        budget: on the error of the recommended attention, in nats a target.
        dense: the model as it is.
        asked: what each part alone does to it: attention as asked, with fitted temperatures, and as recommended; the
            head as asked, and with fitted settings as it is recommended.
        recommended: the model with recommended attention and head.
        heads: every head alone, at every alpha that was tried.
        recommendation: ``attn`` and ``head`` for ``sparsify``, as plain data; None keeps softmax.
    """

    model: str
    eps: float
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
        """The error of each head of one kind of attention that alone is sparse: (layers, heads); NaN where not tried.

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
        errors = torch.full(shape, torch.nan)
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
        width = max(map(len, rows))
        lines = [
            f"{self.model} on {self.dense.targets:,} targets",
            f"{'':<{width}}{f'ppl (eps {self.eps:g})':>18}{'KL':>9}{'classes':>10}",
        ]
        for name, each in rows.items():
            lines.append(f"{name:<{width}}{each.eps_perplexity:>18.2f}{each.divergence:>9.4f}{each.support:>10.1f}")
        for kind in self.kinds:
            lines.append(f"KL of each {kind} head alone, one layer a line")
            lines += [" ".join(f"{error:8.5f}" for error in layer) for layer in self.errors(kind).tolist()]
        lines += [f"attention within a KL of {self.budget:g}:", self.call]
        return "\n".join(lines)


@dataclass(frozen=True)
class CalibratedLayer:
    """One layer's attention before and after.

    Attributes:
        path: the module's path.
        kind: ``"encoder"``, ``"decoder"`` or ``"cross"``.
        temperature: a number, or one for each head.
        before: with the settings it had.
        after: with the fitted temperature.
    """

    path: str
    kind: str
    temperature: float | tuple[float, ...]
    before: LayerQuality
    after: LayerQuality


@dataclass(frozen=True)
class Calibration:
    """The findings of ``calibrate``. Printing it gives tables.

    Attributes:
        model: the model's class.
        eps: of the perplexities.
        dense: the model with softmax everywhere.
        before: as it was before calibration.
        after: as it is now.
        layers: each layer of sparse attention.
        head: the head's map with its settings as plain data, None for softmax.
    """

    model: str
    eps: float
    dense: Quality
    before: Quality
    after: Quality
    layers: list[CalibratedLayer]
    head: dict[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [("dense", self.dense), ("before", self.before), ("after", self.after)]
        lines = [
            f"{self.model} on {self.dense.targets:,} targets",
            f"{'':<8}{'loss':>9}{f'ppl (eps {self.eps:g})':>18}{'KL':>9}{'classes':>10}",
            *(
                f"{name:<8}{each.loss:>9.4f}{each.eps_perplexity:>18.2f}{each.divergence:>9.4f}{each.support:>10.1f}"
                for name, each in rows
            ),
        ]
        if self.head is not None:
            lines.append("head: " + ", ".join(f"{key} {_shown(value)}" for key, value in self.head.items()))
        if self.layers:
            width = max(len(layer.path) for layer in self.layers)
            pairs = f"{'error: before, after':>22}{'KL: before, after':>19}"
            lines.append(f"{'attention':<{width}}{'keys: dense, before, after':>28}{pairs}  temperature")
        for layer in self.layers:
            keys = f"{layer.before.dense_support:.1f} {layer.before.support:.1f} {layer.after.support:.1f}"
            errors = f"{layer.before.error:.4f} {layer.after.error:.4f}"
            divergences = f"{layer.before.divergence:.4f} {layer.after.divergence:.4f}"
            pairs = f"{errors:>22}{divergences:>19}"
            lines.append(f"{layer.path:<{width}}{keys:>28}{pairs}  {_shown(layer.temperature)}")
        return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return " ".join(f"{each:.3g}" for each in value) if isinstance(value, tuple) else str(value)
