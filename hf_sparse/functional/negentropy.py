"""Regularizers: the convex functions Omega whose maximizers ``argmax_p <p, z> - Omega(p)`` are the maps."""

from __future__ import annotations

import torch
from torch import Tensor

from .newton import SOFTMAX_BELOW


def negative_entropy(p: Tensor) -> Tensor:
    """``Omega(p) = sum_i p_i log p_i`` over the last axis, in nats: the regularizer of softmax."""
    return (p * torch.where(p > 0, p, 1.0).log()).sum(-1)  # xlogy has no finite derivative at 0


def tsallis_negentropy(p: Tensor, alpha: float = 1.5) -> Tensor:
    """``Omega(p) = (sum_i p_i^alpha - 1) / (alpha (alpha - 1))`` over the last axis: the regularizer of alpha-entmax.

    Zero at every one-hot p.
    """
    if alpha - 1 < SOFTMAX_BELOW:
        return negative_entropy(p)
    # As the mass is one, that is sum_i p_i (p_i^(alpha - 1) - 1) / (alpha (alpha - 1)). Written so, alpha - 1 divides
    # the small differences themselves, to full relative precision, and not the rounding of powers and mass near one.
    excess = torch.expm1((alpha - 1) * torch.where(p > 0, p, 1.0).log())
    return (p * excess).sum(-1) / (alpha * (alpha - 1))


def half_squared_norm(p: Tensor) -> Tensor:
    """``Omega(p) = (||p||^2 - 1) / 2`` over the last axis: the regularizer of sparsemax. Zero at every one-hot p."""
    return tsallis_negentropy(p, 2.0)


def unnormalized_negentropy(p: Tensor, alpha: float, tau: float) -> Tensor:
    """``Omega(p) = sum_i p_i^alpha / (alpha (alpha - 1)) + tau sum_i p_i / (alpha - 1)`` over the last axis.

    The regularizer over all ``p >= 0`` whose maximizer is ``alpha_relu``. The entropy printed with the loss in the
    paper differs from it by a multiple of ``sum p - 1`` and would not give the gradient of Lemma 1.
    """
    powers = torch.where(p > 0, p, 1.0).pow(alpha) * (p > 0)
    return powers.sum(-1) / (alpha * (alpha - 1)) + tau * p.sum(-1) / (alpha - 1)
