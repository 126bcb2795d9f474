"""The multilabel study."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, stdev
from typing import Any

from ._blocks import block, read
from ._cards import Card, Measure, cards
from ._studies import origin

RESULT = "recipes/results/multilabel.json"
MULAN = {name: f"recipes/results/multilabel_{name}.json" for name in ("birds", "emotions", "scene")}
VARIED = {
    "labels": "mean number of labels",
    "range": "range of the number of labels",
    "words": "words a document",
}
Row = dict[str, list[dict[str, float]]]  # the figures of all seeds, by pair


def points(result: str = RESULT) -> dict[str, Row]:
    """What the pairs were trained on, by the names of the runs without the pair: ``labels-2`` and so on."""
    found: dict[str, Row] = {}
    for record in read(result)["runs"]:
        pair = record["settings"]["pair"]
        point = found.setdefault(record["run"].removesuffix(f"-{pair}"), {})
        point.setdefault(pair, []).append(record["figures"])
    return found


def varied() -> dict[str, Row]:
    """The points of the three settings of Section 5.1.1."""
    return {name: row for name, row in points().items() if name.split("-")[0] in VARIED}


def mean(seeds: list[dict[str, float]], key: str) -> float:
    """A figure over seeds."""
    return fmean(figures[key] for figures in seeds)


def percent(seeds: list[dict[str, float]]) -> str:
    """Micro F1 over seeds, with its standard deviation where there are several."""
    values = [100 * figures["micro_f1"] for figures in seeds]
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


@block
def multilabel_synthetic() -> str:
    """Micro F1 of the four pairs at every point of the three settings of Laha et al. 2018."""
    rows = varied()
    pairs = list(next(iter(rows.values())))
    lines = [f"| setting | value | {' | '.join(pairs)} |", "|---" * (2 + len(pairs)) + "|"]
    for name, row in rows.items():
        what, value = name.split("-")
        best = max(pairs, key=lambda pair: mean(row[pair], "micro_f1"))
        cells = [f"**{percent(row[pair])}**" if pair == best else percent(row[pair]) for pair in pairs]
        lines.append(f"| {VARIED[what]} | {value} | {' | '.join(cells)} |")
    records = [record for record in read(RESULT)["runs"] if record["settings"]["model"] == "linear"]
    settings, seeds = records[0]["settings"], {record["settings"]["seed"] for record in records}
    told = (
        f"Micro F1 in percent on held-out documents, mean and standard deviation of {len(seeds)} seeds; "
        f"{settings['rows']:,} documents, linear models, {settings['steps']} full-batch steps. {origin(records)}"
    )
    return "\n".join([*lines, "", told])


@block
def multilabel_mulan() -> str:
    """Micro F1, divergence and support on real data, and as a head of a Transformers classifier."""
    lines = ["| data | pair | micro F1, percent | Jensen-Shannon (nats) | labels of nonzero probability |"]
    lines.append("|---" * 5 + "|")
    rows = {name: points(result)["data"] for name, result in MULAN.items()}
    rows["documents, BERT-like"] = points()["classifier"]
    for name, row in rows.items():
        for pair, seeds in row.items():
            lines.append(
                f"| {name} | {pair} | {percent(seeds)} | {mean(seeds, 'jensen_shannon'):.3f} | "
                f"{mean(seeds, 'support_size'):.2f} |"
            )
    return "\n".join(lines)


@cards
def classifiers() -> Iterator[Card]:
    """A card for each sparse loss of the Transformers classifier."""
    records = {record["run"]: record for record in read(RESULT)["runs"] if record["run"].startswith("classifier-")}
    rows: dict[str, dict[str, Any]] = {record["settings"]["pair"]: record["figures"] for record in records.values()}
    for name, record in records.items():
        pair = record["settings"]["pair"]
        if pair == "softmax+log":
            continue
        yield Card(
            name=f"multilabel-{pair.replace('+', '-')}",
            title=f"Multilabel classification with {pair}",
            task="text-classification",
            what=f"A BERT-like classifier of documents, trained with the pair of map and loss {pair} (Laha et al. "
            "2018). A label is on where its probability is not zero; there is no threshold to tune.",
            data="Made-up documents: drawn as in the paper's Appendix A.6, with one to three labels of ten.",
            measures=(
                Measure("micro F1", "micro_f1", ".1%", "higher"),
                Measure("Jensen-Shannon divergence (nats)", "jensen_shannon", ".3f", "lower"),
                Measure("labels of nonzero probability", "support_size", ".2f"),
            ),
            rows=rows,
            own=pair,
            dense="softmax+log",
            command=f"python recipes/multilabel.py --only {name}",
            weights=f"out/multilabel/runs/{name}-{record['settings']['seed']}/model",
            limits="The documents are bags of words drawn by a program: the model knows no language. One run.",
            result=record,
        )
