"""Exact sparse alternatives to softmax for Hugging Face Transformers models.

Importing this package teaches Transformers to bring sparse checkpoints back sparse and its fill-mask pipelines to read
sparse heads; nothing else is changed until a ``Trainer`` is given a sparse model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .config import SparseConfig
from .hooks import install
from .hub import from_pretrained, save_pretrained
from .patching import is_sparse, probabilities, sparse_config, sparsify, unsparsify

if TYPE_CHECKING:
    from .annealing import *
    from .conversion import *
    from .diagnosis import *
    from .fertility import *
    from .fertility_predictor import *
    from .generation import *
    from .plots import *
    from .report import *
    from .trainer import *

install()

# By module, what is imported on first use: Trainer alone takes longer to import than all the rest.
_ON_FIRST_USE = {
    "annealing": ("AnnealingCallback",),
    "conversion": ("calibrate", "compare", "estimate_tau_from_data"),
    "diagnosis": ("doctor",),
    "fertility": ("GuidedFertility", "WordAligner"),
    "fertility_predictor": ("FertilityCollator", "FertilityPredictor"),
    "generation": (
        "AlphaReluLogitsProcessor",
        "CoveragePenalty",
        "Ensemble",
        "EntmaxLogitsProcessor",
        "ExactSearchOutput",
        "Hypothesis",
        "SearchResult",
        "SparseLogitsProcessor",
        "SupportSet",
        "TopHLogitsProcessor",
        "beam_certificate",
        "compare_with_empty",
        "enumerate_support",
        "exact_decoding",
        "exact_search",
        "hypothesis_tree",
        "score_sequences",
        "step_supports",
        "suggest",
        "tree_text",
    ),
    "plots": ("plot_attention", "plot_head_errors", "plot_hypotheses"),
    "report": ("html_report",),
    "trainer": ("SparseSeq2SeqTrainer", "SparseTrainer", "SparseTrainingArguments"),
}
_MODULE_OF = {name: module for module, names in _ON_FIRST_USE.items() for name in names}

__all__ = [
    "SparseConfig",
    "__version__",
    "from_pretrained",
    "is_sparse",
    "probabilities",
    "save_pretrained",
    "sparse_config",
    "sparsify",
    "unsparsify",
    *_MODULE_OF,
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
