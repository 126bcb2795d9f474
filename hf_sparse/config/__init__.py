"""What a sparse model is told: which map replaces softmax where, with which settings."""

from .attention_rule import AttentionRule
from .map_config import MapConfig
from .sparse_config import SparseConfig

__all__ = ["AttentionRule", "MapConfig", "SparseConfig"]
