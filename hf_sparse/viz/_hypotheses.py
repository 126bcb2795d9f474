"""A picture of all hypotheses: where they branch, and the probability of each branch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from ..functional.arguments import check_type
from ..generation import Branch
from ..generation.labels import columns, percent, token_labels, visible
from ._figure import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
CHARACTER, PADDING, BOX_HEIGHT = 0.085, 0.1, 0.22
ROW, EDGE, STEM, MARGIN = 0.34, 0.85, 0.12, 0.15
MOST_HYPOTHESES = 100


def plot_hypotheses(
    tree: Branch,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    title: str = "",
    path: str | Path | None = None,
) -> Figure:
    """Draw hypotheses from left to right, one box per token, with the probability of every branch.

    Args:
        tree: from ``hypothesis_tree``.
        tokenizer: writes tokens as text; None for their ids.
        title: above the picture.
        path: file to save it to (PNG, SVG, PDF or JPEG, by its suffix); None does not save.

    Returns:
        The matplotlib figure. A number is the probability of all hypotheses through that branch.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: no tree.
        ValueError: more hypotheses than fit a picture, or a ``path`` that names no picture.
        FileNotFoundError: the folder of ``path`` does not exist.

    Source: Peters et al. 2019, Figure 1.
    """
    check_type("tree", tree, Branch, "hypothesis_tree")
    if tree.leaves > MOST_HYPOTHESES:
        raise ValueError(
            f"{tree.leaves} hypotheses do not fit a picture, {MOST_HYPOTHESES} do; draw the likeliest: "
            f"hypothesis_tree(sequences[:{MOST_HYPOTHESES}], probabilities[:{MOST_HYPOTHESES}])"
        )
    labels = {id(branch): token_labels(branch.tokens, tokenizer) for _, branch in tree.walk()}
    width = 2 * MARGIN + _drawn_width(tree, labels)
    height = 2 * MARGIN + ROW * tree.leaves
    figure = new_figure(width, height, path)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    if title:
        axes.set_title(visible(title), parse_math=False, fontsize=10)
    _draw(axes, tree, labels, MARGIN, MARGIN + ROW / 2)
    save_figure(figure, path)
    return figure


def _draw(axes: Axes, branch: Branch, labels: dict[int, list[str]], x: float, top: float) -> float:
    """Draw a branch whose first hypothesis is at height ``top``; return the height of its own tokens."""
    end = x + sum(map(_box_width, labels[id(branch)]))
    y, child_top = top, top
    for number, child in enumerate(branch.children):
        child_y = _draw(axes, child, labels, end + EDGE, child_top)
        if number == 0:
            y = child_y  # the likeliest child is on the same line
        _draw_edge(axes, (end, y), (end + EDGE, child_y), child.probability)
        child_top += ROW * child.leaves
    for label in labels[id(branch)]:
        _draw_box(axes, label, x, y)
        x += _box_width(label)
    return y


def _draw_edge(axes: Axes, start: tuple[float, float], end: tuple[float, float], probability: float) -> None:
    corner = start[0] + STEM
    axes.plot([start[0], corner, corner], [start[1], start[1], end[1]], color="0.5", linewidth=1)
    arrow = {"arrowstyle": "->", "color": "0.5", "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, (corner, end[1]), arrowprops=arrow)
    background = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    middle = (corner + end[0]) / 2
    axes.text(middle, end[1], percent(probability, 1), ha="center", va="center", fontsize=7, bbox=background)


def _draw_box(axes: Axes, label: str, x: float, y: float) -> None:
    from matplotlib.patches import Rectangle

    corner = (x, y - BOX_HEIGHT / 2)
    axes.add_patch(Rectangle(corner, _box_width(label), BOX_HEIGHT, facecolor="#eef4fb", edgecolor="#4878a8"))
    middle = x + _box_width(label) / 2
    axes.text(middle, y, label, ha="center", va="center", family="monospace", fontsize=9, parse_math=False)


def _box_width(label: str) -> float:
    return PADDING + CHARACTER * columns(label)


def _drawn_width(branch: Branch, labels: dict[int, list[str]]) -> float:
    own = sum(map(_box_width, labels[id(branch)]))
    return own + max((EDGE + _drawn_width(child, labels) for child in branch.children), default=0.0)
