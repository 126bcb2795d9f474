"""The sparse model: made from a dense one, run, diagnosed, and made dense again."""

from .doctor import Diagnosis, doctor
from .head_impl import set_head_impl
from .learn import learn_settings
from .sparsify import sparsify, unsparsify
from .state import is_sparse, log_probabilities, probabilities, raw_scores, sparse_config

__all__ = [
    "Diagnosis",
    "doctor",
    "is_sparse",
    "learn_settings",
    "log_probabilities",
    "probabilities",
    "raw_scores",
    "set_head_impl",
    "sparse_config",
    "sparsify",
    "unsparsify",
]
