"""Pictures of the pretrained recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ..lib.records import Record

_NAMES = {"dense": "softmax, all keys read", "sparse": "entmax, all keys read", "screened": "entmax, screened"}


def draw_head(records: Sequence[Record], path: Path) -> None:
    """Draw one head's attention in a sentence, with softmax and calibrated; cells of weight zero are empty."""
    last = records[-1]
    example, edges = last["figures"]["example"], last["figures"]["edges"]
    labels, (layer, head) = example["tokens"], example["head"]
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    sparse = f"{last['settings']['map']}, calibrated: {1 - edges:.0%} of all heads' weights are zero"
    titles = {"dense": "softmax", "sparse": sparse}
    for axes, (way, title) in zip(panels, titles.items()):
        weights = np.array(example[way])
        image = axes.imshow(np.where(weights > 0, weights, np.nan), cmap="viridis_r", vmin=0, vmax=1)
        axes.set_xticks(range(len(labels)), labels, rotation=90, parse_math=False)
        axes.set_yticks(range(len(labels)), labels, parse_math=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title, fontsize="medium")
    panels[0].set_ylabel("token that looks")
    figure.supxlabel(f"token looked at (layer {layer + 1}, head {head + 1})", fontsize="medium")
    figure.colorbar(image, ax=panels, shrink=0.7, label="weight; empty cells: exactly zero")
    figure.savefig(path, dpi=110)


def draw_cache(records: Sequence[Record], path: Path) -> None:
    """Draw time and bytes of a step over the tokens in the cache; a line style for each dtype."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for record, style in zip(records, ("-", "--", ":")):
        found, dtype = record["figures"]["contexts"], record["settings"]["dtype"]
        contexts = [int(context) for context in found]
        for number, (way, name) in enumerate(_NAMES.items()):
            spent = [each["milliseconds"][way] for each in found.values()]
            left.plot(contexts, spent, style, marker="o", markersize=3, color=f"C{number}", label=f"{name}, {dtype}")
        right.plot(
            contexts,
            [100 * each["share"] for each in found.values()],
            style,
            color="C2",
            marker="o",
            markersize=3,
            label=dtype,
        )
        read_exactly = [100 * each["exact_share"] for each in found.values()]
        right.plot(
            contexts, read_exactly, style, color="C3", marker="o", markersize=3, label=f"{dtype}, not in 8 bits"
        )
    left.set(xlabel="tokens in the cache", ylabel="CPU milliseconds a token", ylim=0)
    right.set(xlabel="tokens in the cache", ylabel="bytes read, percent of float16", ylim=(0, 100))
    for axes in (left, right):
        axes.legend(fontsize="x-small", handlelength=4)
    figure.savefig(path, dpi=110)
