"""Pictures of sparse models."""

from ._attention_heatmap import plot_attention
from ._hypothesis_lattice import plot_hypotheses

__all__ = ["plot_attention", "plot_hypotheses"]
