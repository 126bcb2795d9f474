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
        Ensemble,
        SupportSet,
        compare_with_empty,
        enumerate_support,
        hypothesis_tree,
        score_sequences,
        step_supports,
        suggest,
        tree_text,
    )
    from .plots import plot_attention, plot_hypotheses
    from .report import html_report
    from .trainer import SparseSeq2SeqTrainer, SparseTrainer, SparseTrainingArguments

install()

# Imported on first use: Trainer alone takes longer to import than all the rest.
_ON_FIRST_USE = {
    "Ensemble": "generation",
    "SparseSeq2SeqTrainer": "trainer",
    "SparseTrainer": "trainer",
    "SparseTrainingArguments": "trainer",
    "SupportSet": "generation",
    "compare_with_empty": "generation",
    "doctor": "diagnosis",
    "enumerate_support": "generation",
    "html_report": "report",
    "hypothesis_tree": "generation",
    "plot_attention": "plots",
    "plot_hypotheses": "plots",
    "score_sequences": "generation",
    "step_supports": "generation",
    "suggest": "generation",
    "tree_text": "generation",
}

__all__ = [
    "Ensemble",
    "SparseConfig",
    "SparseSeq2SeqTrainer",
    "SparseTrainer",
    "SparseTrainingArguments",
    "SupportSet",
    "__version__",
    "compare_with_empty",
    "doctor",
    "enumerate_support",
    "from_pretrained",
    "html_report",
    "hypothesis_tree",
    "is_sparse",
    "plot_attention",
    "plot_hypotheses",
    "probabilities",
    "save_pretrained",
    "score_sequences",
    "sparse_config",
    "sparsify",
    "step_supports",
    "suggest",
    "tree_text",
    "unsparsify",
]


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return getattr(import_module(f".{_ON_FIRST_USE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
