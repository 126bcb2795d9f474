"""Metrics of sparse models: of distributions, of alignments and of repetition.

Functions of tensors leave the mean over a data set to the caller, who knows the counts; ``rep_score``, ``drop_score``
and ``alignment_error_rate`` take a corpus and return its score.
"""

from .alignment import alignment_error_rate, attended_words, drop_score, parse_links
from .distribution import (
    eps_perplexity,
    jensen_shannon,
    logit_norm,
    self_normalization_sum,
    sparsemax_score,
    support_size,
)
from .repetition import rep_score

__all__ = [
    "alignment_error_rate",
    "attended_words",
    "drop_score",
    "eps_perplexity",
    "jensen_shannon",
    "logit_norm",
    "parse_links",
    "rep_score",
    "self_normalization_sum",
    "sparsemax_score",
    "support_size",
]
