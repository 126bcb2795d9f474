"""Pictures of sparse models."""

from ._attention_heatmap import plot_attention
from ._head_errors import plot_head_errors
from ._hypothesis_lattice import plot_hypotheses

__all__ = [
    "plot_attention",
    "plot_head_errors",
    "plot_hypotheses",
]
