"""Fertility: bounds on the attention that a source word may receive, and the models that they come from."""

from .aligner import Links, Word, WordAligner
from .counts import fertility_counts
from .guided import GuidedFertility
from .predictor import FertilityCollator, FertilityPredictor, fertility_dataset

__all__ = [
    "FertilityCollator",
    "FertilityPredictor",
    "GuidedFertility",
    "Links",
    "Word",
    "WordAligner",
    "fertility_counts",
    "fertility_dataset",
]
