"""Decoding with sparse outputs: finite sets of candidates, search with proofs, ensembles, logits processors."""

from ..attention.screened_cache import CacheReads, ScreenedCache
from .conditioning.condition import condition
from .conditioning.grammar import Grammar
from .conditioning.lexicon import Lexicon
from .conditioning.required_words import RequiredWords
from .conditioning.result import Conditioned, Interval
from .coverage_penalty import CoveragePenalty
from .deletion.certify import DeletionCertificate, certify
from .ensemble import Ensemble
from .forced import StepSupport, step_supports
from .language import Intersection, Language
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
    "CacheReads",
    "Conditioned",
    "CoveragePenalty",
    "DeletionCertificate",
    "EmptyComparison",
    "Ensemble",
    "EntmaxLogitsProcessor",
    "ExactSearchOutput",
    "Grammar",
    "Hypothesis",
    "Intersection",
    "Interval",
    "Language",
    "Lexicon",
    "RequiredWords",
    "ScreenedCache",
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
    "condition",
    "enumerate_support",
    "exact_decoding",
    "exact_search",
    "hypothesis_tree",
    "score_sequences",
    "step_supports",
    "suggest",
    "tree_text",
]
