"""Newton's method for a threshold, as device functions that all kernels share.

``u = [x - tau]_+`` is an excess over the threshold, ``P = 1 / (alpha - 1)`` and ``p = u^P`` the weight. ``EXPONENT``
is P where it is 1, 2, 3 or 4, so that powers are products, and 0 where P is any other number, given as ``exponent``.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def slope_power(u, exponent, EXPONENT: tl.constexpr):
    """``u^(P - 1)``, which is ``p^(2 - alpha)``: the derivative of a weight, and 0 off the support."""
    if EXPONENT == 1:
        slope = (u > 0).to(tl.float32)
    elif EXPONENT == 2:
        slope = u
    elif EXPONENT == 3:
        slope = u * u
    elif EXPONENT == 4:
        slope = u * u * u
    else:
        slope = tl.where(u > 0, tl.exp2((exponent - 1) * tl.log2(tl.where(u > 0, u, 1.0))), 0.0)
    return slope


@triton.jit
def rise(mass, slope, alpha, EXPONENT: tl.constexpr):
    """The step of tau by Newton's method on the P-norm: from a lower bound to a better one, never past the root.

    The norm of the excess is convex and decreasing in tau for ``P >= 1``; ``mass = sum u^P``,
    ``slope = sum u^(P - 1)``, and ``mass^(1 - 1/P) = mass^(2 - alpha)``.
    """
    if EXPONENT == 1:
        excess = mass - 1
    elif EXPONENT == 2:
        excess = mass - tl.sqrt(mass)
    else:
        excess = mass - tl.exp2((2 - alpha) * tl.log2(tl.maximum(mass, 1.0)))
    return tl.maximum(excess, 0.0) / tl.maximum(slope, 1e-30)


@triton.jit
def joined(norm, fall, x, tau, alpha, exponent, EXPONENT: tl.constexpr):
    """The P-norm of each row's excesses, at tau: of ``x`` (rows, entries), and of others that have norm ``norm``.

    Returns it with its fall, which is minus its derivative in tau; ``fall`` is that of ``norm``.
    """
    u = tl.maximum(x - tau[:, None], 0.0)
    slopes = slope_power(u, exponent, EXPONENT)
    powers = slope_power(norm, exponent, EXPONENT)
    total = powers * norm + tl.sum(slopes * u, 1)
    positive = tl.where(total > 0, total, 1.0)
    if EXPONENT == 1:
        root = positive
    elif EXPONENT == 2:
        root = tl.sqrt(positive)
    else:
        root = tl.exp2((alpha - 1) * tl.log2(positive))
    return tl.where(total > 0, root, 0.0), (powers * fall + tl.sum(slopes, 1)) * (root / positive)


@triton.jit
def norm_rise(norm, fall):
    """The step of tau at which a norm with slope ``-fall`` reaches 1; 0 where it is below."""
    return tl.maximum(norm - 1, 0.0) / tl.maximum(fall, 1e-30)
