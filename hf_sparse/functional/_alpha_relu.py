"""alpha-ReLU (Tezekbayev et al. 2022): entmax with a fixed threshold, which needs no solver."""

from __future__ import annotations

from functools import partial
from math import isfinite

import torch
from torch import Tensor

from ..tracing import in_graph
from ._few_rows import only_values_wanted
from ._in_chunks import map_in_chunks
from .negentropy import unnormalized_negentropy
from .newton import dtype_for, exponent_of, power
from .registry import Setting, SparseMap, register
from .rows import check_scores, map_rows


def alpha_relu(z: Tensor, alpha: float | Tensor, tau: float | Tensor, dim: int = -1) -> Tensor:
    """``p_i = [(alpha - 1) z_i - tau]_+ ^ (1 / (alpha - 1))``, elementwise.

    The weights are not normalized: they approximate a distribution only where the model was trained with
    ``alpha_relu_loss``. Adding a constant to the scores changes them. In attention tau must be a number.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        alpha: from 1.001 to 5; or a tensor of such (not checked), broadcastable to ``z``, which receives a gradient.
        tau: the threshold, in units of ``(alpha - 1) z``, up to 1e6 in size; or a tensor, broadcastable to ``z``,
            which receives one too.
        dim: ignored, since the map is elementwise; all maps take it.

    Returns:
        Non-negative weights, shape and dtype of ``z``, not summing to one. Computed in float32 (float64 for float64
        scores, and for an alpha below 1.1, above 2 or in a tensor).

    Raises:
        TypeError: ``z`` is not a floating-point tensor, or a setting is neither a number nor such a tensor.
        ValueError: a setting out of range, or a tensor setting that does not broadcast to ``z``.
        IndexError: ``dim`` is out of range.

    Source: Tezekbayev et al. 2022, Eq. 4.
    Cost: a few passes in cache.

    >>> alpha_relu(torch.tensor([3.0, 2.0, 0.0]), alpha=1.5, tau=0.5)
    tensor([1.0000, 0.2500, 0.0000])
    """
    check_scores(z, dim)
    alpha, tau = RELU_ALPHA.broadcast("alpha", alpha, z, dim), _NUMBER.broadcast("tau", tau, z, dim)
    if torch.is_tensor(alpha) or torch.is_tensor(tau):
        return map_rows(partial(_weights, alpha=alpha, tau=tau), z, dim)
    weights, gradient = (partial(function, alpha=alpha, tau=tau) for function in (_weights, _gradient))
    return map_in_chunks(weights, gradient, z, dim)


def _weights(x: Tensor, alpha: float | Tensor, tau: float | Tensor) -> Tensor:
    """p of x, in float32 or float64; differentiable in all three."""
    if not torch.is_tensor(alpha) and not torch.is_tensor(tau) and not in_graph() and only_values_wanted(x):
        return power(_excess(x, alpha, tau), exponent_of(alpha))
    # A masked entry must not reach alpha's gradient as 0 times inf.
    x = x.double() if torch.is_tensor(alpha) else x.to(dtype_for(alpha, x))
    masked = x == -torch.inf
    u = ((alpha - 1) * x.masked_fill(masked, 0.0) - tau).masked_fill(masked, -torch.inf)
    support = u > 0
    # 1 instead of 0 off the support keeps the derivative of the power finite there, for alpha > 2 too.
    p = torch.where(support, torch.where(support, u, 1.0).pow(1 / (alpha - 1)), 0.0)
    return torch.where(u.isnan(), u, p)


def _excess(x: Tensor, alpha: float, tau: float) -> Tensor:
    """``[(alpha - 1) x - tau]_+``, in the dtype that its power is computed in."""
    return x.to(dtype_for(alpha, x)).mul(alpha - 1).sub_(tau).clamp_(min=0)


def _gradient(x: Tensor, grad: Tensor, alpha: float, tau: float) -> Tensor:
    """``g u ^ ((2 - alpha) / (alpha - 1))`` on the support; off it 0, whatever g is (infinite, of log p)."""
    u, exponent = _excess(x, alpha, tau), exponent_of(alpha) - 1
    if alpha < 2:
        slope = power(u, exponent)
    else:  # above 2 it is infinite at the threshold
        inside = u.sign()
        slope = inside if alpha == 2 else power(u.add_(1 - inside), exponent).mul_(inside)
    product = slope * grad
    return product if isfinite(product.sum()) else product.masked_fill_(_excess(x, alpha, tau) == 0, 0.0)


# Closer to 1 the loss, in units of 1 / (alpha - 1), leaves float32 no digits; further from it weights rise so steeply
# from the threshold that rounding a score decides between 0 and a tenth.
RELU_ALPHA = Setting.between(1.001, 5, default=1.5)
_TAU = 1e6
_NUMBER = Setting.between(-_TAU, _TAU, default=0.0)

register(
    SparseMap(
        "alpha_relu",
        alpha_relu,
        unnormalized_negentropy,
        settings={"alpha": RELU_ALPHA, "tau": Setting.between(-_TAU, _TAU, default="auto", words=("auto",))},
        normalized=False,
        elementwise=True,
        shift_invariant=False,
    )
)
