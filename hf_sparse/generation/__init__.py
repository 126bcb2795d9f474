"""What only sparse outputs allow: finite sets of candidates, and decoding that proves what it found. And a search that
heeds coverage."""

from ._coverage_penalty import CoveragePenalty
from ._empty_string import EmptyComparison, compare_with_empty
from ._ensemble import Ensemble
from ._hypothesis_tree import Branch, hypothesis_tree, tree_text
from ._processors import AlphaReluLogitsProcessor, EntmaxLogitsProcessor, SparseLogitsProcessor, TopHLogitsProcessor
from ._scores import SequenceScores, score_sequences
from ._step_supports import StepSupport, step_supports
from ._suggest import Suggestion, Suggestions, suggest
from ._token_labels import percent, token_labels
from .search.beam_certificate import beam_certificate
from .search.enumerate import SupportSet, enumerate_support
from .search.exact_search import ExactSearchOutput, exact_decoding, exact_search
from .search.result import Hypothesis, SearchResult

__all__ = [
    "AlphaReluLogitsProcessor",
    "Branch",
    "CoveragePenalty",
    "EmptyComparison",
    "Ensemble",
    "EntmaxLogitsProcessor",
    "ExactSearchOutput",
    "Hypothesis",
    "SearchResult",
    "SequenceScores",
    "SparseLogitsProcessor",
    "StepSupport",
    "Suggestion",
    "Suggestions",
    "SupportSet",
    "TopHLogitsProcessor",
    "beam_certificate",
    "compare_with_empty",
    "enumerate_support",
    "exact_decoding",
    "exact_search",
    "hypothesis_tree",
    "percent",
    "score_sequences",
    "step_supports",
    "suggest",
    "token_labels",
    "tree_text",
]
