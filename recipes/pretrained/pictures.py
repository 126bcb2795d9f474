"""Pictures of the pretrained recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ..lib.records import Record

_NAMES = {"dense": "softmax, all keys read", "sparse": "entmax, all keys read", "screened": "entmax, screened"}


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
