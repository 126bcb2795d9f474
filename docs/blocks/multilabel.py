"""The multilabel recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._blocks import block, read
from ._cards import Card, Measure, cards


@block
def multilabel_synthetic() -> str:
    """Micro F1 of the four pairs at every point of the three settings of Laha et al. 2018."""
    result = read("recipes/results/multilabel.json")
    pairs = list(result["transformer"])
    lines = [f"| setting | value | {' | '.join(pairs)} |", "|---" * (2 + len(pairs)) + "|"]
    for name, points in result["synthetic"].items():
        for value, row in points.items():
            lines.append(f"| {name} | {value} | {_best([row[pair] for pair in pairs])} |")
    settings = result["settings"]
    return "\n".join(
        [
            *lines,
            "",
            f"Micro F1 in percent on held-out documents, mean and standard deviation of {settings['seeds']} seeds; "
            f"{settings['rows']:,} documents, linear models, {settings['steps']} full-batch steps. {_where(result)}",
        ]
    )


@block
def multilabel_mulan() -> str:
    """Micro F1, divergence and support on real data, and as a head of a Transformers classifier."""
    result = read("recipes/results/multilabel.json")
    lines = ["| data | pair | micro F1 | Jensen-Shannon (nats) | labels of nonzero probability |", "|---" * 5 + "|"]
    for name, rows in result["mulan"].items():
        for pair, row in rows.items():
            f1, divergence, size = (row[key] for key in ("micro_f1", "jensen_shannon", "support_size"))
            lines.append(
                f"| {name} | {pair} | {f1['mean']:.1%} ± {100 * f1['std']:.1f} | {divergence['mean']:.3f} | "
                f"{size['mean']:.2f} |"
            )
    for pair, row in result["transformer"].items():
        lines.append(
            f"| documents, BERT-like | {pair} | {row['micro_f1']:.1%} | {row['jensen_shannon']:.3f} | "
            f"{row['support_size']:.2f} |"
        )
    return "\n".join(lines)


def _best(cells: list[dict[str, Any]]) -> str:
    means = [cell["micro_f1"]["mean"] for cell in cells]
    texts = [f"{100 * cell['micro_f1']['mean']:.1f} ± {100 * cell['micro_f1']['std']:.1f}" for cell in cells]
    return " | ".join(f"**{text}**" if mean == max(means) else text for mean, text in zip(means, texts))


def _where(result: dict[str, Any]) -> str:
    hardware, versions = result["hardware"], result["versions"]
    return (
        f"{hardware['cores']} cores ({hardware['device']}), torch {versions['torch']}, transformers "
        f"{versions['transformers']}, commit {(result['commit'] or 'unknown')[:10]}."
    )


@cards
def classifiers() -> Iterator[Card]:
    """A card for each sparse loss of the Transformers classifier."""
    result = read("recipes/results/multilabel.json")
    rows = result["transformer"]
    for pair in rows:
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
            command="python recipes/multilabel.py",
            weights=f"out/multilabel/trainer/{pair}",
            limits="The documents are bags of words drawn by a program: the model knows no language. One run.",
            result=result,
        )
