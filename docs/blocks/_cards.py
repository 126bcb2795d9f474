"""Model cards made from committed results: what a model is, its figures, where it lost, and how to make it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from hf_sparse import SparseConfig
from hf_sparse.model.model_card import sparsity_section

CARDS: list[Callable[[], Iterable[Card]]] = []


def cards(make: Callable[[], Iterable[Card]]) -> Callable[[], Iterable[Card]]:
    """Write the cards that the function gives."""
    CARDS.append(make)
    return make


@dataclass(frozen=True)
class Measure:
    """A column of a card's table.

    Attributes:
        label: its heading.
        key: of the figure in a row.
        form: how the figure is written, as for ``format``.
        better: ``"higher"`` or ``"lower"``; empty where neither is.
    """

    label: str
    key: str
    form: str
    better: str = ""

    def text(self, row: Mapping[str, Any]) -> str:
        """The figure of a row."""
        return format(row[self.key], self.form)

    def lost(self, row: Mapping[str, Any], dense: Mapping[str, Any]) -> bool:
        """Whether a row is worse than the dense one."""
        difference = row[self.key] - dense[self.key]
        return difference < 0 if self.better == "higher" else difference > 0 if self.better == "lower" else False


@dataclass(frozen=True)
class Card:
    """One trained configuration that is kept as a result.

    Attributes:
        name: of the file, and of the model.
        title: the heading.
        task: as the Hub calls it.
        what: what the model is; a paragraph.
        data: what it was trained and evaluated on.
        measures: columns of the table.
        rows: figures of all that it is compared with, by name.
        own: the row that is this model.
        dense: the row that is the model with softmax.
        command: makes the weights.
        weights: where the command leaves them.
        limits: what it should not be used for.
        result: the file of results, for what it ran on.
        config: settings of ``sparsify``; None where only the loss is sparse.
        support: figures for the section on sparse maps.
    """

    name: str
    title: str
    task: str
    what: str
    data: str
    measures: tuple[Measure, ...]
    rows: Mapping[str, Mapping[str, Any]]
    own: str
    dense: str
    command: str
    weights: str
    limits: str
    result: Mapping[str, Any]
    config: Mapping[str, Any] | None = None
    support: Mapping[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """The card."""
        config = None if self.config is None else SparseConfig.from_dict(dict(self.config))
        metadata = ModelCardData(
            library_name="transformers",
            tags=["hf_sparse", *(config.map_names if config else ())],
            model_name=self.name,
            eval_results=[
                EvalResult(
                    task_type=self.task,
                    dataset_type="text",
                    dataset_name=self.data.split(":")[0],
                    metric_type=measure.key,
                    metric_name=measure.label,
                    metric_value=round(self.rows[self.own][measure.key], 6),
                )
                for measure in self.measures
                if measure.better
            ],
        )
        parts = [
            f"---\n{metadata.to_yaml()}\n---",
            f"# {self.title}",
            self.what,
            f"## Figures\n\n{self._table()}\n\n{self.data} {self._origin()}",
            f"## Where softmax was better\n\n{self._losses()}",
            f"## Weights\n\n{self._weights()}",
            f"## Limits\n\n{self.limits}",
        ]
        if config is not None:
            parts.append(sparsity_section(config, self.support, self.weights))
        return "\n\n".join(parts) + "\n"

    def _table(self) -> str:
        lines = [
            f"| | {' | '.join(measure.label for measure in self.measures)} |",
            "|---" * len(self.measures) + "|---|",
        ]
        for name, row in self.rows.items():
            cells = [measure.text(row) for measure in self.measures]
            marked = [f"**{cell}**" for cell in (name, *cells)] if name == self.own else [name, *cells]
            lines.append(f"| {' | '.join(marked)} |")
        return "\n".join(lines)

    def _losses(self) -> str:
        own, dense = self.rows[self.own], self.rows[self.dense]
        lost = [
            f"- {measure.label}: {measure.text(own)}, `{self.dense}` {measure.text(dense)}"
            for measure in self.measures
            if measure.lost(own, dense)
        ]
        return "\n".join(lost) or "In none of these figures."

    def _weights(self) -> str:
        where = f"They are then in `{self.weights}`." if self.weights else "It keeps the figures and no weights."
        return (
            f"Weights are not kept in the repository. This command trains the model:\n\n    {self.command}\n\n{where}"
        )

    def _origin(self) -> str:
        versions, hardware = self.result["versions"], self.result["hardware"]
        return (
            f"{hardware['device']}, {hardware['torch_threads']} thread(s); "
            f"{', '.join(f'{name} {versions[name]}' for name in ('hf_sparse', 'transformers', 'torch'))}; commit "
            f"{(self.result['commit'] or 'unknown')[:10]}."
        )
