"""Heat maps of attention weights that tell exact zeros from small weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..functional.arguments import check_labels, check_tensor
from ..generation.labels import percent, visible
from ._figure import new_figure, room_for, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_CELL = 0.42  # inches
_LARGEST = 30  # inches of all cells beyond which they are drawn smaller
_MOST_LABELS = 1000


def plot_attention(
    weights: Tensor, keys: Sequence[str], queries: Sequence[str], *, title: str = "", path: str | Path | None = None
) -> Figure:
    """Draw attention weights as a heat map with every nonzero cell outlined.

    Args:
        weights: (queries, keys), of one head or averaged over heads.
        keys: labels of the columns.
        queries: labels of the rows.
        title: above the picture.
        path: file to save it to (PNG, SVG, PDF or JPEG, by its suffix); None does not save.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: weights that are no tensor, or labels that are no texts.
        ValueError: no weights, NaN or negative ones, a shape that does not fit the labels, too many to draw, or a
            ``path`` that names no picture.
        FileNotFoundError: the folder of ``path`` does not exist.
    """
    check_tensor("weights", weights)
    check_labels("keys", keys)
    check_labels("queries", queries)
    if weights.numel() == 0:
        raise ValueError(f"there are no weights to draw, they were {tuple(weights.shape)}")
    if tuple(weights.shape) != (len(queries), len(keys)):
        raise ValueError(
            f"weights must be (queries, keys) = ({len(queries)}, {len(keys)}), were {tuple(weights.shape)}"
        )
    most = max(len(keys), len(queries))
    if most > _MOST_LABELS:
        raise ValueError(f"{most} tokens do not fit a picture, {_MOST_LABELS} do; draw a part: weights[-100:, -100:]")
    cells = weights.detach().cpu().double().numpy()  # in float32 the smallest of float64 would be zero
    if not (cells >= 0).all() or cells.max() == float("inf"):
        raise ValueError(f"weights must be finite and at least 0, were from {cells.min()} to {cells.max()}")
    keys, queries = list(map(visible, keys)), list(map(visible, queries))
    scale = min(1.0, _LARGEST / (_CELL * most))
    across, down = scale * _CELL * len(keys), scale * _CELL * len(queries)
    figure = new_figure(1.5 + across + room_for(queries), 1.2 + down + room_for(keys), path)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    image = axes.imshow(cells, cmap="Blues", vmin=0, vmax=max(1.0, cells.max()), aspect="equal")
    from matplotlib.collections import PolyCollection

    middles = weights.nonzero().cpu().double().flip(1)  # column and row
    corners = torch.tensor([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]], dtype=torch.float64, device="cpu")
    outlines: Any = (middles[:, None] + corners).numpy()  # an array, which matplotlib takes faster than a list
    axes.add_collection(
        PolyCollection(outlines, facecolor="none", edgecolor="tab:orange", linewidth=1.2 * scale), autolim=False
    )
    # Dollar signs in a token are text, not mathematics.
    axes.set_xticks(range(len(keys)), keys, rotation=90 if max(map(len, keys)) > 2 else 0, parse_math=False)
    axes.set_yticks(range(len(queries)), queries, parse_math=False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=10 * scale)
    axes.spines[:].set_visible(False)
    zeros = (cells == 0).mean()
    axes.set_xlabel(f"outlined: weight above zero; {percent(zeros, 0)} of the cells are exactly zero")
    if title:
        axes.set_title(visible(title), parse_math=False)
    figure.colorbar(image, shrink=0.8, label="weight")
    save_figure(figure, path)
    return figure
