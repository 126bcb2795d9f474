"""Regularizers: the convex functions Omega whose maximizers ``argmax_p <p, z> - Omega(p)`` are the maps.

Of weights in float32 or float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .newton import is_softmax


def negative_entropy(p: Tensor) -> Tensor:
    """``Omega(p) = sum_i p_i log p_i`` over the last axis, in nats: the regularizer of softmax."""
    return (p * _positive(p).log()).sum(-1)  # xlogy has no finite derivative at 0


def tsallis_negentropy(p: Tensor, alpha: float = 1.5) -> Tensor:
    """``Omega(p) = (sum_i p_i^alpha - 1) / (alpha (alpha - 1))`` over the last axis: the regularizer of alpha-entmax.

    Zero at every one-hot p.
    """
    if is_softmax(alpha):
        return negative_entropy(p)
    # As the mass is one, that is sum_i p_i (p_i^(alpha - 1) - 1) / (alpha (alpha - 1)). Written so, alpha - 1 divides
    # the small differences themselves, to full relative precision, and not the rounding of powers and mass near one.
    return (p * _excess(p, alpha)).sum(-1) / (alpha * (alpha - 1))


def _excess(p: Tensor, alpha: float) -> Tensor:
    """``p^(alpha - 1) - 1``; where p is zero any finite number, for the product with p."""
    if alpha == 2:
        return p - 1
    if alpha == 1.5:
        return _positive(p).rsqrt() * p - 1
    return torch.expm1((alpha - 1) * _positive(p).log())


def _positive(p: Tensor) -> Tensor:
    """p, no lower than a number so small that it weighs nothing, and so large that second derivatives are finite.

    By clamp: on a CPU torch.where takes a scalar loop, several times as long as a logarithm.
    """
    return p.clamp(min=torch.finfo(p.dtype).tiny ** 0.4)


def half_squared_norm(p: Tensor) -> Tensor:
    """``Omega(p) = (||p||^2 - 1) / 2`` over the last axis: the regularizer of sparsemax. Zero at every one-hot p."""
    return tsallis_negentropy(p, 2.0)


def unnormalized_negentropy(p: Tensor, alpha: float, tau: float) -> Tensor:
    """``Omega(p) = sum_i p_i^alpha / (alpha (alpha - 1)) + tau sum_i p_i / (alpha - 1)`` over the last axis.

    The regularizer over all ``p >= 0`` whose maximizer is ``alpha_relu``. The entropy printed with the loss in the
    paper differs from it by a multiple of ``sum p - 1`` and would not give the gradient of Lemma 1.
    """
    mass = p.sum(-1)
    return (mass + (p * _excess(p, alpha)).sum(-1)) / (alpha * (alpha - 1)) + tau * mass / (alpha - 1)
