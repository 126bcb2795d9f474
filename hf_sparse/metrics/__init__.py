"""What a distribution, or the scores behind it, looks like: sparsity, sharpness, distance from the data.

Functions of tensors leave the averaging over a data set to the caller, who knows the counts. Those of coverage
(``rep_score``, ``drop_score``, ``alignment_error_rate``) take a corpus and give its score.
"""

from ._alignment_error_rate import alignment_error_rate
from ._attended_words import attended_words
from ._drop_score import drop_score
from ._eps_perplexity import eps_perplexity
from ._jensen_shannon import jensen_shannon
from ._links import parse_links
from ._logit_norm import logit_norm
from ._rep_score import rep_score
from ._self_normalization_sum import self_normalization_sum
from ._sparsemax_score import sparsemax_score
from ._support_size import support_size
from ._threshold import threshold

__all__ = [
    "alignment_error_rate",
    "attended_words",
    "drop_score",
    "eps_perplexity",
    "jensen_shannon",
    "logit_norm",
    "parse_links",
    "rep_score",
    "self_normalization_sum",
    "sparsemax_score",
    "support_size",
    "threshold",
]
