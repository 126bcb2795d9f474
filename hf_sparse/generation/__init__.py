"""What only sparse outputs allow: finite sets of candidates, and decoding that proves what it found."""

from ._beam_certificate import beam_certificate
from ._enumerate import SupportSet, enumerate_support
from ._exact_search import ExactSearchOutput, exact_decoding, exact_search
from ._processors import (
    AlphaReluLogitsProcessor,
    EntmaxLogitsProcessor,
    SparseLogitsProcessor,
    TopHLogitsProcessor,
)
from ._result import Hypothesis, SearchResult

__all__ = [
    "AlphaReluLogitsProcessor",
    "EntmaxLogitsProcessor",
    "ExactSearchOutput",
    "Hypothesis",
    "SearchResult",
    "SparseLogitsProcessor",
    "SupportSet",
    "TopHLogitsProcessor",
    "beam_certificate",
    "enumerate_support",
    "exact_decoding",
    "exact_search",
]
