"""What a distribution, or the scores behind it, looks like: sparsity, sharpness, distance from the data.

Every function maps tensors to a tensor and leaves the averaging over a data set to the caller, who knows the counts.
"""

from ._eps_perplexity import eps_perplexity
from ._jensen_shannon import jensen_shannon
from ._logit_norm import logit_norm
from ._self_normalization_sum import self_normalization_sum
from ._sparsemax_score import sparsemax_score
from ._support_size import support_size
from ._threshold import threshold

__all__ = [
    "eps_perplexity",
    "jensen_shannon",
    "logit_norm",
    "self_normalization_sum",
    "sparsemax_score",
    "support_size",
    "threshold",
]
