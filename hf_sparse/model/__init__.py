"""The sparse model: made from a dense one, run, diagnosed, and made dense again."""

from .doctor import Diagnosis, doctor
from .find import is_sparse, sparse_config
from .head_impl import set_head_impl
from .learn import learn_settings
from .readings import log_probabilities, probabilities, raw_scores
from .sparsify import sparsify, unsparsify

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
