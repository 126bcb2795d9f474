"""Fertility: how much attention a source word may receive, where that comes from, and attention that keeps to it."""

from ._constrained_attention import constrained_attention
from ._guided import GuidedFertility, fertility_counts
from ._word_aligner import Links, Word, WordAligner

__all__ = ["GuidedFertility", "Links", "Word", "WordAligner", "constrained_attention", "fertility_counts"]
