"""Figures without a window system, saved with the same bytes on every run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import write_whole
from ._file import picture_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_INCHES = 60  # 9,000 pixels


def new_figure(width: float, height: float, path: str | Path | None = None) -> Figure:
    """An empty matplotlib figure, which notebooks show as a picture.

    Args:
        width: in inches.
        height: in inches.
        path: where it will be saved.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: a picture that no screen and little memory could hold; see ``picture_file`` too.
        FileNotFoundError: see ``picture_file``.
    """
    if max(width, height) > MOST_INCHES:
        raise ValueError(
            f"a picture of {width:.0f} by {height:.0f} inches is too large, the longest side may be {MOST_INCHES}; "
            "draw a part of it"
        )
    if path is not None:
        picture_file(path)
    try:
        import matplotlib.figure  # noqa: F401

        from ._picture import Picture
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'hf_sparse[plots]'") from error
    return Picture(figsize=(width, height))


def room_for(labels: Sequence[str]) -> float:
    """Inches for the longest label of an axis, beyond those that every figure has; too few would leave no picture."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font, drawn = FontProperties(), TextToPath()
    points = max(drawn.get_text_width_height_descent(label, font, ismath=False)[0] for label in labels)
    return max(0.0, 1.05 * points / 72 - 0.9)


def save_figure(figure: Figure, path: str | Path | None) -> None:
    """Save in the format of the suffix of ``path``; None does not save. Where that fails, no file is touched."""
    if path is None:
        return
    file = picture_file(path)
    drawn = io.BytesIO()
    if file.suffix.lower() == ".svg":
        drawn.write(svg_text(figure).encode())
    else:
        figure.savefig(drawn, format=file.suffix[1:].lower(), dpi=150, bbox_inches="tight")
    write_whole(file, drawn.getvalue())


def svg_text(figure: Figure) -> str:
    """The figure as SVG; the same figure gives the same text."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "hf_sparse"}):
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    return text.getvalue()
