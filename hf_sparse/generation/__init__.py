"""What only sparse outputs allow: finite sets of candidates."""

from ._empty_string import EmptyComparison, compare_with_empty
from ._ensemble import Ensemble
from ._enumerate import SupportSet, enumerate_support
from ._hypothesis_tree import Branch, hypothesis_tree, tree_text
from ._scores import SequenceScores, score_sequences
from ._step_supports import StepSupport, step_supports
from ._suggest import Suggestion, Suggestions, suggest
from ._token_labels import percent, token_labels

__all__ = [
    "Branch",
    "EmptyComparison",
    "Ensemble",
    "SequenceScores",
    "StepSupport",
    "Suggestion",
    "Suggestions",
    "SupportSet",
    "compare_with_empty",
    "enumerate_support",
    "hypothesis_tree",
    "percent",
    "score_sequences",
    "step_supports",
    "suggest",
    "token_labels",
    "tree_text",
]
