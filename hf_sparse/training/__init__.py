"""Training sparse models: a trainer with Fenchel-Young losses, and annealing from softmax."""

from .annealing import AnnealingCallback
from .trainer import SparseSeq2SeqTrainer, SparseTrainer, SparseTrainingArguments

__all__ = ["AnnealingCallback", "SparseSeq2SeqTrainer", "SparseTrainer", "SparseTrainingArguments"]
