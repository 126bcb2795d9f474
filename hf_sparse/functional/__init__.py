"""Sparse maps from scores to weights. One file per map; importing it registers the map under its name.

>>> import torch
>>> import hf_sparse.functional as F
>>> F.entmax15(torch.tensor([[1.0, 0.5, -2.0]]))
tensor([[0.6740, 0.3260, 0.0000]])
"""

from ._alpha_relu import alpha_relu
from ._csoftmax import csoftmax
from ._csparsemax import csparsemax, csparsemax_threshold
from ._entmax import entmax
from ._entmax15 import entmax15
from ._entmax_support import Support, entmax_support, entmax_threshold
from ._relu_over_n import relu_over_n
from ._sigmoid import sigmoid
from ._softmax import softmax
from ._softmax1 import softmax1
from ._softpick import softpick
from ._sparsegen import sparsegen_exp, sparsegen_lin, sparsegen_log, sparsegen_sq
from ._sparsehourglass import sparsecone, sparsehourglass
from ._sparsemax import sparsemax
from ._spherical_softmax import spherical_softmax
from ._squared_relu_over_n import squared_relu_over_n
from ._sum_normalization import sum_normalization, sum_normalization_pp
from ._threshold import support, threshold
from .registry import MAPS, Setting, SparseMap, UpperBounds, get_map
from .tau import estimate_tau, estimate_tau_from_head, positive_part_moment
from .temperature import balanced_temperature

__all__ = [
    "MAPS",
    "Setting",
    "SparseMap",
    "Support",
    "UpperBounds",
    "alpha_relu",
    "balanced_temperature",
    "csoftmax",
    "csparsemax",
    "csparsemax_threshold",
    "entmax",
    "entmax15",
    "entmax_support",
    "entmax_threshold",
    "estimate_tau",
    "estimate_tau_from_head",
    "get_map",
    "positive_part_moment",
    "relu_over_n",
    "sigmoid",
    "softmax",
    "softmax1",
    "softpick",
    "sparsecone",
    "sparsegen_exp",
    "sparsegen_lin",
    "sparsegen_log",
    "sparsegen_sq",
    "sparsehourglass",
    "sparsemax",
    "spherical_softmax",
    "squared_relu_over_n",
    "sum_normalization",
    "sum_normalization_pp",
    "support",
    "threshold",
]
