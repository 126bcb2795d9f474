"""Decoding with sparse outputs: finite sets of candidates, search with proofs, ensembles, logits processors."""

from .coverage_penalty import CoveragePenalty
from .deletion.certify import DeletionCertificate, certify
from .ensemble import Ensemble
from .forced import StepSupport, step_supports
from .processors import AlphaReluLogitsProcessor, EntmaxLogitsProcessor, SparseLogitsProcessor, TopHLogitsProcessor
from .scores import EmptyComparison, SequenceScores, compare_with_empty, score_sequences
from .search.beam_certificate import beam_certificate
from .search.enumerate import SupportSet, enumerate_support
from .search.exact_search import ExactSearchOutput, exact_decoding, exact_search
from .search.result import Hypothesis, SearchResult
from .suggest import Suggestion, Suggestions, suggest
from .tree import Branch, hypothesis_tree, tree_text

__all__ = [
    "AlphaReluLogitsProcessor",
    "Branch",
    "CoveragePenalty",
    "DeletionCertificate",
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
    "certify",
    "compare_with_empty",
    "enumerate_support",
    "exact_decoding",
    "exact_search",
    "hypothesis_tree",
    "score_sequences",
    "step_supports",
    "suggest",
    "tree_text",
]
