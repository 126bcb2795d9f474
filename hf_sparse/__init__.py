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
    from .generation import (
        AlphaReluLogitsProcessor,
        EntmaxLogitsProcessor,
        ExactSearchOutput,
        Hypothesis,
        SearchResult,
        SparseLogitsProcessor,
        SupportSet,
        TopHLogitsProcessor,
        beam_certificate,
        enumerate_support,
        exact_decoding,
        exact_search,
    )
    from .plots import plot_attention
    from .trainer import SparseSeq2SeqTrainer, SparseTrainer, SparseTrainingArguments

install()

# Imported on first use: Trainer alone takes longer to import than all the rest.
_ON_FIRST_USE = {
    "AlphaReluLogitsProcessor": "generation",
    "EntmaxLogitsProcessor": "generation",
    "ExactSearchOutput": "generation",
    "Hypothesis": "generation",
    "SearchResult": "generation",
    "SparseLogitsProcessor": "generation",
    "SparseSeq2SeqTrainer": "trainer",
    "SparseTrainer": "trainer",
    "SparseTrainingArguments": "trainer",
    "SupportSet": "generation",
    "TopHLogitsProcessor": "generation",
    "beam_certificate": "generation",
    "doctor": "diagnosis",
    "enumerate_support": "generation",
    "exact_decoding": "generation",
    "exact_search": "generation",
    "plot_attention": "plots",
}

__all__ = [
    "AlphaReluLogitsProcessor",
    "EntmaxLogitsProcessor",
    "ExactSearchOutput",
    "Hypothesis",
    "SearchResult",
    "SparseConfig",
    "SparseLogitsProcessor",
    "SparseSeq2SeqTrainer",
    "SparseTrainer",
    "SparseTrainingArguments",
    "SupportSet",
    "TopHLogitsProcessor",
    "__version__",
    "beam_certificate",
    "doctor",
    "enumerate_support",
    "exact_decoding",
    "exact_search",
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
