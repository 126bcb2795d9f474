"""How much attention a source word may receive: word alignment, and fertilities counted from it."""

from ._guided import GuidedFertility, fertility_counts
from ._word_aligner import Links, Word, WordAligner

__all__ = ["GuidedFertility", "Links", "Word", "WordAligner", "fertility_counts"]
