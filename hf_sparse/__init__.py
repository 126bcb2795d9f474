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
    from .annealing import AnnealingCallback
    from .conversion import calibrate, compare, estimate_tau_from_data
    from .diagnosis import doctor
    from .generation import SupportSet, enumerate_support
    from .plots import plot_attention, plot_head_errors
    from .trainer import SparseSeq2SeqTrainer, SparseTrainer, SparseTrainingArguments

install()

# Imported on first use: Trainer alone takes longer to import than all the rest.
_ON_FIRST_USE = {
    "AnnealingCallback": "annealing",
    "SparseSeq2SeqTrainer": "trainer",
    "SparseTrainer": "trainer",
    "SparseTrainingArguments": "trainer",
    "SupportSet": "generation",
    "calibrate": "conversion",
    "compare": "conversion",
    "doctor": "diagnosis",
    "enumerate_support": "generation",
    "estimate_tau_from_data": "conversion",
    "plot_attention": "plots",
    "plot_head_errors": "plots",
}

__all__ = [
    "AnnealingCallback",
    "SparseConfig",
    "SparseSeq2SeqTrainer",
    "SparseTrainer",
    "SparseTrainingArguments",
    "SupportSet",
    "__version__",
    "calibrate",
    "compare",
    "doctor",
    "enumerate_support",
    "estimate_tau_from_data",
    "from_pretrained",
    "is_sparse",
    "plot_attention",
    "plot_head_errors",
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
