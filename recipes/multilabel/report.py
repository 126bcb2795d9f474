"""Report of the multilabel study: tables, blocks of the README, model cards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..lib import markdown
from ..lib.blocks import block, read
from ..lib.card import Card, Measure, alike
from ..lib.environment import origin
from ..lib.records import Figures, Record
from .pictures import VARIED, draw

RESULTS = "recipes/multilabel/results"
MULAN = ("birds", "emotions", "scene")
MEASURES = (
    Measure("micro F1", "micro_f1", ".1%", "higher"),
    Measure("Jensen-Shannon divergence (nats)", "jensen_shannon", ".3f", "lower"),
    Measure("labels of nonzero probability", "support_size", ".2f"),
)
Row = dict[str, list[Figures]]  # figures of all seeds, by pair


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table and draw the picture."""
    found = points(results["runs"])
    print(table(found))
    draw(found, out / "multilabel.png")


def points(records: Sequence[Record]) -> dict[str, Row]:
    """Group figures by point, named as the runs without the pair (``labels-2``), then by pair."""
    found: dict[str, Row] = {}
    for record in records:
        pair = record["settings"]["pair"]
        point = found.setdefault(record["run"].removesuffix(f"-{pair}"), {})
        point.setdefault(pair, []).append(record["figures"])
    return found


def mean(seeds: list[Figures], key: str) -> float:
    """Mean of a figure over seeds."""
    return fmean(figures[key] for figures in seeds)


def table(found: dict[str, Row]) -> str:
    """Micro F1 in percent, points by pairs."""
    pairs = list(dict.fromkeys(pair for row in found.values() for pair in row))
    lines = [f"{'micro F1':<14}" + "".join(f"{pair:>24}" for pair in pairs)]
    for point, row in found.items():
        cells = [f"{mean(row[pair], 'micro_f1'):>24.1%}" if pair in row else " " * 24 for pair in pairs]
        lines.append(f"{point:<14}{''.join(cells)}")
    return "\n".join(lines)


def condensed(figures: Figures) -> Figures:
    """The figures that git keeps: those that are reported."""
    return {measure.key: figures[measure.key] for measure in MEASURES}


def card(record: Record, records: Sequence[Record]) -> Card:
    """Model card of one classifier, compared with those of the other pairs."""
    settings = record["settings"]
    fewest, most = settings["mean_labels"] - settings["spread"], settings["mean_labels"] + settings["spread"]
    zeros = " A label is on if its probability is not zero; there is no threshold to tune."
    return Card(
        name=f"multilabel-{record['run'].replace('+', '-')}",
        title=f"Multilabel classification with {settings['pair']}",
        task="text-classification",
        what=f"A BERT-like classifier of documents, trained with the pair of map and loss {settings['pair']} (Laha et "
        f"al. 2018).{'' if settings['pair'] == 'softmax+log' else zeros}",
        data=f"Made-up documents: drawn as in the paper's Appendix A.6, with {fewest} to {most} labels of 10.",
        measures=MEASURES,
        rows={other["settings"]["pair"]: other["figures"] for other in alike(record, records, "pair")},
        own=settings["pair"],
        dense="softmax+log",
        limits="The documents are bags of words drawn by a program: the model knows no language. One run.",
        record=record,
    )


def percent(seeds: list[Figures]) -> str:
    """Micro F1 over seeds in percent, with its standard deviation if there are several."""
    values = [100 * figures["micro_f1"] for figures in seeds]
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


@block
def multilabel_synthetic() -> str:
    """Micro F1 of the four pairs at every point of the three settings of Laha et al. 2018, Section 5.1.1."""
    everything = read(f"{RESULTS}/documents.json")["runs"]
    found = {name: row for name, row in points(everything).items() if name.split("-")[0] in VARIED}
    pairs = list(next(iter(found.values())))
    rows = []
    for name, row in found.items():
        varied, value = name.split("-")
        best = max(pairs, key=lambda pair: mean(row[pair], "micro_f1"))
        cells = [f"**{percent(row[pair])}**" if pair == best else percent(row[pair]) for pair in pairs]
        rows.append([VARIED[varied], value, *cells])
    records = [record for record in everything if record["settings"]["model"] == "linear"]
    settings, seeds = records[0]["settings"], {record["settings"]["seed"] for record in records}
    return (
        f"{markdown.table(['setting', 'value', *pairs], rows)}\n\n"
        f"Micro F1 in percent on held-out documents, mean and standard deviation of {len(seeds)} seeds; "
        f"{settings['rows']:,} documents, linear models, {settings['steps']} full-batch steps. {origin(records)}"
    )


@block
def multilabel_mulan() -> str:
    """Micro F1, divergence and support on Mulan data, and with a Transformers classifier."""
    columns = ["data", "pair", "micro F1, percent", "Jensen-Shannon (nats)", "labels of nonzero probability"]
    found = {name: points(read(f"{RESULTS}/{name}.json")["runs"])["data"] for name in MULAN}
    found["documents, BERT-like"] = points(read(f"{RESULTS}/documents.json")["runs"])["classifier"]
    rows = [
        [name, pair, percent(seeds), f"{mean(seeds, 'jensen_shannon'):.3f}", f"{mean(seeds, 'support_size'):.2f}"]
        for name, row in found.items()
        for pair, seeds in row.items()
    ]
    return markdown.table(columns, rows)
