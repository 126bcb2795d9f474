"""What calibration found, to be read and to be stored."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ._measure import LayerQuality, Quality


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
    """What ``calibrate`` found. Printing it gives tables.

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
