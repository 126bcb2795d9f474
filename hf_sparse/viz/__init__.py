"""Pictures of sparse models, and an HTML report that shows them for one input."""

from ._attention_heatmap import plot_attention
from ._certificate import plot_certificate
from ._head_errors import plot_head_errors
from ._html_report import html_report
from ._hypotheses import plot_hypotheses

__all__ = ["html_report", "plot_attention", "plot_certificate", "plot_head_errors", "plot_hypotheses"]
