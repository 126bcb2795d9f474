"""Losses with gradient ``p - y`` for a sparse p, and multilabel losses that are zero at the right sparse p."""

from ._alpha_relu_loss import alpha_relu_loss
from ._entmax_loss import entmax15_loss, entmax_loss, softmax_loss, sparsemax_loss
from ._fenchel_young import fenchel_young_loss
from .linear import (
    fused_maps,
    linear_alpha_relu_loss,
    linear_entmax_loss,
    linear_fenchel_young_loss,
    linear_sparsemax_loss,
)
from .multilabel import softmax_log_loss, sparsegen_lin_hinge_loss, sparsehourglass_hinge_loss, sparsemax_huber_loss
from .suppression import suppression_loss

__all__ = [
    "alpha_relu_loss",
    "entmax15_loss",
    "entmax_loss",
    "fenchel_young_loss",
    "fused_maps",
    "linear_alpha_relu_loss",
    "linear_entmax_loss",
    "linear_fenchel_young_loss",
    "linear_sparsemax_loss",
    "softmax_log_loss",
    "softmax_loss",
    "sparsegen_lin_hinge_loss",
    "sparsehourglass_hinge_loss",
    "sparsemax_huber_loss",
    "sparsemax_loss",
    "suppression_loss",
]
