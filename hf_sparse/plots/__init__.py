"""Pictures of sparse models."""

from ._attention_heatmap import plot_attention

__all__ = ["plot_attention"]
