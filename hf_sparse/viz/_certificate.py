"""A picture of a deletion certificate: the input tokens that each generated token needs, and those it does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..functional.arguments import check_type
from ..generation import DeletionCertificate
from ..generation.labels import visible
from ._figure import new_figure, room_for, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL = "all of them"


def plot_certificate(
    certificate: DeletionCertificate,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    *,
    title: str = "",
    path: str | Path | None = None,
) -> Figure:
    """Draw a certificate: a row for each generated token and one for all of them, a column for each input token.

    A filled cell is a token that is needed; an empty one provably has no influence.

    Args:
        certificate: from ``certify``.
        inputs: labels of the columns of the inputs, padding included; None writes their numbers.
        outputs: labels of the generated tokens; None writes their numbers.
        title: above the picture.
        path: file to save it to (PNG, SVG, PDF or JPEG, by its suffix); None does not save.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: no certificate; ``certify`` returns a list of them.
        ValueError: a certificate of no output, tokens without a label, too many of them to draw, or a ``path`` that
            names no picture.
        FileNotFoundError: the folder of ``path`` does not exist.
    """
    check_type("certificate", certificate, DeletionCertificate, "the list that certify returns")
    columns, rows = (list(map(visible, labels)) for labels in certificate_labels(certificate, inputs, outputs))
    needs = [certificate.needed[output] for output in certificate.needed] + [certificate.kept]
    cells = torch.tensor([[token in needed for token in certificate.tokens] for needed in needs], device="cpu").float()
    figure = new_figure(1.8 + 0.34 * len(columns) + room_for(rows), 1.4 + 0.34 * len(needs) + room_for(columns), path)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    axes.imshow(cells.numpy(), cmap="Blues", vmin=0, vmax=1.4, aspect="equal")
    # Dollar signs in a token are text, not mathematics.
    axes.set_xticks(range(len(columns)), columns, rotation=90 if max(map(len, columns)) > 2 else 0, parse_math=False)
    axes.set_yticks(range(len(needs)), [*rows, ALL], parse_math=False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for between in range(1, len(columns)):
        axes.axvline(between - 0.5, color="0.85", linewidth=0.6)
    for below in range(1, len(needs)):
        last = below == len(needs) - 1
        axes.axhline(below - 0.5, color="tab:orange" if last else "0.85", linewidth=1.5 if last else 0.6)
    count = f"{len(certificate.deletable)} of {len(certificate.tokens)} inputs can be deleted together"
    axes.set_xlabel(f"empty: proved to have no influence\n{count}")
    if title:
        axes.set_title(visible(title), parse_math=False)
    save_figure(figure, path)
    return figure


def certificate_labels(
    certificate: DeletionCertificate, inputs: Sequence[str] | None, outputs: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Labels of the input tokens, and of the outputs, that a certificate is about.

    Args:
        certificate: from ``certify``.
        inputs: of the columns of the inputs; None for their numbers.
        outputs: of the generated tokens; None for their numbers.

    Raises:
        ValueError: a certificate of no output, or tokens without a label.
    """
    if not certificate.needed:
        raise ValueError("the certificate is of no output: the row ended before those that were asked for")
    chosen = []
    for name, labels, places in (
        ("inputs", inputs, certificate.tokens),
        ("outputs", outputs, list(certificate.needed)),
    ):
        if labels is not None and len(labels) <= max(places):
            raise ValueError(f"{name} must be labels of at least {max(places) + 1} tokens, were {len(labels)}")
        chosen.append([str(place) if labels is None else labels[place] for place in places])
    return chosen[0], chosen[1]
