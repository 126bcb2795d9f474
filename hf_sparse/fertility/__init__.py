"""Fertility: how much attention a source word may receive, and where that number comes from."""

from .aligner import Links, Word, WordAligner
from .guided import GuidedFertility, fertility_counts
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
