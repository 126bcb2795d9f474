"""Training sparse models: trainers with Fenchel-Young losses and shuffled buckets of length, and annealing."""

from .annealing import AnnealingCallback
from .arguments import SparseTrainingArguments
from .buckets import BucketedTrainer, LengthBuckets
from .supports import store_supports
from .trainer import SparseSeq2SeqTrainer, SparseTrainer

__all__ = [
    "AnnealingCallback",
    "BucketedTrainer",
    "LengthBuckets",
    "SparseSeq2SeqTrainer",
    "SparseTrainer",
    "SparseTrainingArguments",
    "store_supports",
]
