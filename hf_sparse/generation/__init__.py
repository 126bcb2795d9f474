"""What only sparse outputs allow: finite sets of candidates. And a search that heeds coverage."""

from ._coverage_penalty import CoveragePenalty
from ._enumerate import SupportSet, enumerate_support

__all__ = ["CoveragePenalty", "SupportSet", "enumerate_support"]
