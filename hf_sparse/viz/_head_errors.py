"""A picture of what each attention head costs when it alone becomes sparse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..conversion import Comparison


def plot_head_errors(
    comparison: Comparison, *, alpha: float | None = None, title: str = "", path: str | Path | None = None
) -> Any:
    """Draw the error of every head that alone is sparse: heads by layers, one panel for each kind of attention.

    Args:
        comparison: what ``compare`` returned, with attention.
        alpha: one that was tried; None is the largest that each head was tried at.
        title: written above.
        path: where to save the picture (PNG, SVG, PDF by its suffix); None does not save.

    Returns:
        The matplotlib figure. Colors are on a logarithmic scale, in nats a target.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: attention was not compared, or not at this alpha.
    """
    try:
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'hf_sparse[plots]'") from error
    if not comparison.heads:
        raise ValueError("the comparison is without attention heads; call compare(model, loader, attn=...)")
    panels = {kind: comparison.errors(kind, alpha) for kind in comparison.kinds}
    values = torch.cat([errors.flatten() for errors in panels.values()])
    # An error of rounding alone, or below zero by it, is drawn as the smallest that can be told from it.
    smallest, largest = 1e-8, max(float(values[~values.isnan()].max()), 2e-8)
    norm = LogNorm(max(smallest, largest * 1e-4), largest)
    widths = [errors.shape[0] for errors in panels.values()]
    height = max(errors.shape[1] for errors in panels.values())
    figure = Figure(figsize=(2 + 0.45 * sum(widths) + 0.6 * len(widths), 1.8 + 0.4 * height), layout="constrained")
    axes = figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0]
    for ax, (kind, errors) in zip(axes, panels.items()):
        image = ax.imshow(errors.T.clamp(min=norm.vmin).numpy(), cmap="viridis", norm=norm, aspect="equal")
        ax.set_title(kind)
        ax.set_xlabel("layer")
        ax.set_xticks(range(errors.shape[0]))
        ax.set_yticks(range(errors.shape[1]))
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel("head")
    figure.colorbar(image, ax=list(axes), label="KL when it alone is sparse (nats a target)")
    if title:
        figure.suptitle(title)
    if path is not None:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    return figure
