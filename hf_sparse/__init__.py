"""Exact sparse alternatives to softmax for Hugging Face Transformers models.

Importing this package teaches Transformers to bring sparse checkpoints back sparse; nothing else is changed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .config import SparseConfig
from .hub import from_pretrained, install, save_pretrained
from .patching import is_sparse, probabilities, sparse_config, sparsify, unsparsify

if TYPE_CHECKING:
    from .diagnosis import doctor
    from .fertility import GuidedFertility, WordAligner
    from .fertility_predictor import FertilityPredictor
    from .generation import CoveragePenalty, SupportSet, enumerate_support
    from .plots import plot_attention
    from .trainer import SparseSeq2SeqTrainer, SparseTrainer, SparseTrainingArguments

install()

# Imported on first use: Trainer alone takes longer to import than all the rest.
_ON_FIRST_USE = {
    "CoveragePenalty": "generation",
    "FertilityPredictor": "fertility_predictor",
    "GuidedFertility": "fertility",
    "SparseSeq2SeqTrainer": "trainer",
    "SparseTrainer": "trainer",
    "SparseTrainingArguments": "trainer",
    "SupportSet": "generation",
    "WordAligner": "fertility",
    "doctor": "diagnosis",
    "enumerate_support": "generation",
    "plot_attention": "plots",
}

__all__ = [
    "CoveragePenalty",
    "FertilityPredictor",
    "GuidedFertility",
    "SparseConfig",
    "SparseSeq2SeqTrainer",
    "SparseTrainer",
    "SparseTrainingArguments",
    "SupportSet",
    "WordAligner",
    "__version__",
    "doctor",
    "enumerate_support",
    "from_pretrained",
    "is_sparse",
    "plot_attention",
    "probabilities",
    "save_pretrained",
    "sparse_config",
    "sparsify",
    "unsparsify",
]


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return getattr(import_module(f".{_ON_FIRST_USE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
