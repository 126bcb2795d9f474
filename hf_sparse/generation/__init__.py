"""What only sparse outputs allow: finite sets of candidates."""

from ._enumerate import SupportSet, enumerate_support
from ._result import Hypothesis, SearchResult

__all__ = ["Hypothesis", "SearchResult", "SupportSet", "enumerate_support"]
