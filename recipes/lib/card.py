"""Model cards made from records: what a model is, its figures, where softmax was better, and how to train it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from hf_sparse import SparseConfig
from hf_sparse.model.model_card import sparsity_section

from . import markdown
from .environment import short_commit
from .records import Record


def alike(record: Record, records: Sequence[Record], *varied: str) -> list[Record]:
    """The records that differ from ``record`` in no settings but ``varied``; it is one of them."""

    def rest(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in varied}

    return [other for other in records if rest(other["settings"]) == rest(record["settings"])]


@dataclass(frozen=True)
class Measure:
    """A column of a table of figures.

    Attributes:
        label: heading of the column.
        key: of the figure.
        form: how the figure is written, as for ``format``.
        better: ``"higher"`` or ``"lower"``; empty where neither is.
    """

    label: str
    key: str
    form: str
    better: str = ""

    def text(self, row: Mapping[str, Any]) -> str:
        """The figure of a row; a dash where it is None."""
        return "-" if row[self.key] is None else format(row[self.key], self.form)

    def lost(self, row: Mapping[str, Any], dense: Mapping[str, Any]) -> bool:
        """Whether a row is worse than the dense one."""
        if row[self.key] is None or dense[self.key] is None:
            return False
        difference = row[self.key] - dense[self.key]
        return difference < 0 if self.better == "higher" else difference > 0 if self.better == "lower" else False


@dataclass(frozen=True)
class Card:
    """The card of one trained model.

    Attributes:
        name: of the model.
        title: heading.
        task: as the Hub calls it.
        what: a paragraph on the model.
        data: training and evaluation data; the name of the data set ends at the first colon.
        measures: columns of the table.
        rows: figures by name, of this model and of those it is compared with.
        own: name of this model's row.
        dense: name of softmax's row; a card without that row makes no comparison with softmax.
        limits: what the model should not be used for.
        record: of the run, with the command that trains it and the folder of its weights.
        config: settings of ``sparsify``; None for a model without sparse maps.
        support: figures for the section on sparse maps.
        is_adapter: whether it is an adapter of PEFT, without its base.
        use: Markdown of the section on use; empty for none.
        metadata: further fields of the card's metadata, ``language`` for instance.
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
    limits: str
    record: Record
    config: Mapping[str, Any] | None = None
    support: Mapping[str, float] = field(default_factory=dict)
    is_adapter: bool = False
    use: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the card beside the weights; one that is up to date is left alone."""
        path, text = folder / "README.md", self.text()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")

    def text(self) -> str:
        """The card in Markdown, with its metadata."""
        config = None if self.config is None else SparseConfig.from_dict(dict(self.config))
        sections = {
            "Use": self.use,
            "Figures": f"{self._table()}\n\n{self.data} {self._origin()}",
            "Where softmax was better": self._losses(),
            "Weights": self._weights(),
            "Limits": self.limits,
        }
        parts = [f"---\n{self._metadata(config).to_yaml()}\n---", f"# {self.title}", self.what]
        parts += [f"## {heading}\n\n{text}" for heading, text in sections.items() if text]
        if config is not None:
            section = sparsity_section(config, self.support, self.record["weights"], is_adapter=self.is_adapter)
            parts.append(section)
        return "\n\n".join(parts) + "\n"

    def _metadata(self, config: SparseConfig | None) -> ModelCardData:
        own = self.rows[self.own]
        results = [
            EvalResult(
                task_type=self.task,
                dataset_type="text",
                dataset_name=self.data.split(":")[0],
                metric_type=measure.key,
                metric_name=measure.label,
                metric_value=round(own[measure.key], 6),
            )
            for measure in self.measures
            if measure.better and own[measure.key] is not None
        ]
        return ModelCardData(
            library_name="transformers",
            tags=["hf_sparse", *(config.map_names if config else ())],
            model_name=self.name,
            eval_results=results,
            **self.metadata,
        )

    def _table(self) -> str:
        rows = []
        for name, row in self.rows.items():
            cells = [name, *(measure.text(row) for measure in self.measures)]
            rows.append([f"**{cell}**" for cell in cells] if name == self.own else cells)
        return markdown.table(["", *(measure.label for measure in self.measures)], rows)

    def _losses(self) -> str:
        if self.own == self.dense or self.dense not in self.rows:
            return ""
        own, dense = self.rows[self.own], self.rows[self.dense]
        lost = [
            f"- {measure.label}: {measure.text(own)}, `{self.dense}` {measure.text(dense)}"
            for measure in self.measures
            if measure.lost(own, dense)
        ]
        judged = [measure.label for measure in self.measures if measure.better]
        return "\n".join(lost) or f"Not in {', '.join(judged)}, beside `{self.dense}`."

    def _weights(self) -> str:
        return (
            "They are not in the repository of `hf_sparse`. This command trains the model and leaves it in "
            f"`{self.record['weights']}`:\n\n    {self.record['command']}"
        )

    def _origin(self) -> str:
        versions, hardware = self.record["versions"], self.record["hardware"]
        named = ", ".join(f"{name} {versions[name]}" for name in ("hf_sparse", "transformers", "torch"))
        machine = f"{hardware['device']}, {hardware['torch_threads']} thread(s)"
        return f"{machine}; {named}; commit {short_commit(self.record)}."
