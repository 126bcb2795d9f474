"""A picture of the error of each attention head under a sparse map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..generation.labels import visible
from ._figure import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..conversion import Comparison


def plot_head_errors(
    comparison: Comparison, *, alpha: float | None = None, title: str = "", path: str | Path | None = None
) -> Figure:
    """Draw the relative error of every head's weights: heads by layers, one panel per kind of attention.

    Args:
        comparison: from ``compare``, with attention.
        alpha: one of those that were tried; None is the largest tried for each head.
        title: above the picture.
        path: file to save it to (PNG, SVG, PDF or JPEG, by its suffix); None does not save.

    Returns:
        The matplotlib figure. Colors are on a logarithmic scale.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: attention was not compared, or not at this alpha; a ``path`` that names no picture.
        FileNotFoundError: the folder of ``path`` does not exist.
    """
    if not comparison.heads:
        raise ValueError("the comparison is without attention heads; call compare(model, loader, attn=...)")
    panels = {kind: comparison.errors(kind, alpha) for kind in comparison.kinds}
    widths = [errors.shape[0] for errors in panels.values()]
    height = max(errors.shape[1] for errors in panels.values())
    figure = new_figure(2 + 0.45 * sum(widths) + 0.6 * len(widths), 1.8 + 0.4 * height, path)
    figure.set_layout_engine("constrained")
    from matplotlib.colors import LogNorm

    values = torch.cat([errors.flatten() for errors in panels.values()])
    # An error of rounding alone, or below zero by it, is drawn as the smallest that can be told from rounding.
    smallest, largest = 1e-8, max(float(values[~values.isnan()].max()), 2e-8)
    lower = max(smallest, largest * 1e-4)
    norm = LogNorm(lower, largest)
    axes = figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0]
    for ax, (kind, errors) in zip(axes, panels.items()):
        image = ax.imshow(errors.T.clamp(min=lower).numpy(), cmap="viridis", norm=norm, aspect="equal")
        ax.set_title(kind)
        ax.set_xlabel("layer")
        ax.set_xticks(range(errors.shape[0]))
        ax.set_yticks(range(errors.shape[1]))
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel("head")
    figure.colorbar(image, ax=list(axes), label="relative error of its weights")
    if title:
        figure.suptitle(visible(title), parse_math=False)
    save_figure(figure, path)
    return figure
