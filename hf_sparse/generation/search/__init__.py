"""Search over all strings a sparse model can write, with proofs of what was found."""

from .beam_certificate import beam_certificate
from .enumerate import SupportSet, enumerate_support
from .exact_search import ExactSearchOutput, exact_decoding, exact_search
from .result import Hypothesis, SearchResult

__all__ = [
    "ExactSearchOutput",
    "Hypothesis",
    "SearchResult",
    "SupportSet",
    "beam_certificate",
    "enumerate_support",
    "exact_decoding",
    "exact_search",
]
