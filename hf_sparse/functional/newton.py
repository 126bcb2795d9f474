"""Newton's method for the threshold of a row: ``||[x - tau]_+||_P = 1``, with ``P = 1 / (alpha - 1)``.

The mass ``sum [x - tau]_+ ^ P`` is one where its P-norm is one, and for ``P >= 1`` the norm is convex and decreasing
in tau. From any lower bound, Newton's steps therefore rise monotonically to the root and need no bracket, and every
iterate is itself a lower bound. All of it happens on the excess ``u = [x - tau]_+``: a step is taken off ``u``, and
``x`` is never read again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..tracing import in_graph
from .rows import accumulation_dtype

_MAX_STEPS = 100
# Exponents whose powers are faster by multiplication than by logarithms.
_WHOLE, _MOST_QUARTERS = range(5, 33), 4
# Rough powers of larger exponents would be off by more than a factor of two.
_MOST_ROUGH, _MOST_ROUGH_STEPS = 16, 10
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def is_softmax(alpha: float) -> bool:
    """Whether the weights of this alpha differ from softmax by less than float32 can tell."""
    return alpha - 1 < 1e-7  # not a global: see dtype_for


def dtype_for(alpha: float, *tensors: Tensor) -> torch.dtype:
    """The dtype to compute powers ``u ** (1 / (alpha - 1))`` in: that of ``accumulation_dtype``, or float64.

    Below 1.1 the power multiplies the rounding error of u by more than ten; above 2 its slope at the threshold is
    infinite. The two stand here as they are: with ``dynamic=True`` a compiler makes a global number a symbol, which it
    does not find again in the second autograd function that reads it.
    """
    return accumulation_dtype(*tensors) if 1.1 <= alpha <= 2.0 else torch.float64


def exponent_of(alpha: float) -> float:
    """``1 / (alpha - 1)``, exactly a number of quarters where rounding alone keeps it from that.

    4/3 gives 3.0000000000000004, and 1.4 gives 2.5000000000000004.
    """
    exponent = 1 / (alpha - 1)
    quarters = round(4 * exponent)
    return quarters / 4 if abs(4 * exponent - quarters) < 4e-9 else exponent


def _product(u: Tensor, count: int) -> Tensor:
    """``count`` factors u multiplied; for one, u itself."""
    if count == 1:
        return u
    half = _product(u, count // 2)
    square = half * half
    return square.mul_(u) if count % 2 else square


def _by_roots(u: Tensor, exponent: float) -> Tensor:
    """``u ** exponent`` for ``u >= 0`` and a positive exponent of some quarters."""
    tiny, largest = torch.finfo(u.dtype).tiny, torch.finfo(u.dtype).max
    # Not by sqrt: where MKL computes it, zeros take forty times as long as other numbers.
    root = u.clamp(min=tiny, max=largest).rsqrt_()
    whole, quarters = divmod(round(4 * exponent), 4)
    if quarters == 1:
        root = torch.threshold_(root.rsqrt_(), 2 * tiny**0.25, 0.0)
    elif quarters == 2:
        root.mul_(u)
    else:
        root.mul_(root.rsqrt()).mul_(u)
    for _ in range(whole):
        root.mul_(u)
    return root


def power(u: Tensor, exponent: float) -> Tensor:
    """``u ** exponent`` for ``u >= 0``, by products and roots where the exponent is small and whole, or some quarters.

    It is u itself for an exponent of 1.
    """
    if exponent == 1:
        return u
    if exponent in (2, 3, 4):
        square = u * u
        return square if exponent == 2 else square * (u if exponent == 3 else square)
    if u.device.type != "cpu" or in_graph() or (u.requires_grad and torch.is_grad_enabled()):
        return u.pow(exponent)
    if 0 < exponent < _MOST_QUARTERS and 4 * exponent == int(4 * exponent):
        return _by_roots(u, exponent)
    # By logarithm and exponential, which is faster here than pow unless the logarithm meets a zero. Where u is below
    # the floor the factor is at least 2^-120, and its product with u is 0 or negligible. Base two: torch's exp2 takes
    # a quarter of the time of its exp.
    floor = 2 ** (-120 / max(1.0, exponent - 1))
    if exponent in _WHOLE:
        return _product(u.clamp(min=floor), int(exponent) - 1).mul_(u)
    return u.clamp(min=floor).log2_().mul_(exponent - 1).exp2_().mul_(u)


def _rough_power(u: Tensor, exponent: float, out: Tensor) -> None:
    """Write ``u ** exponent``, roughly and without a logarithm, for a positive exponent; 0 where u is not normal.

    The bits of a float, read as a whole number, are its logarithm to base two but for scale and offset, and but for
    the fraction f in the place of ``log2(1 + f)``, which is up to 0.086 more. The mean, 0.057, is made up for.
    """
    info = torch.finfo(u.dtype)
    lowest = math.log2(info.tiny)
    out.copy_(u.view(_BITS[u.dtype])).mul_(info.eps * exponent).add_((lowest - 1 + 0.057) * exponent)
    torch.threshold_(out, lowest * exponent, -torch.inf).exp2_()


def _rise(mass: Tensor, slope: Tensor, exponent: float) -> Tensor:
    """The rise of tau by a Newton step on the norm, from ``sum u^P`` and ``sum u^(P - 1)``; overwrites the latter."""
    # A fully masked row has u = 0: it must not come out as 0 / 0.
    return (mass - mass.pow(1 - 1 / exponent)).div_(slope.clamp_(min=torch.finfo(slope.dtype).tiny))


def _look(u: Tensor, exponent: float) -> tuple[Tensor, Tensor, Tensor]:
    """``u ** exponent``, the rise of tau by a Newton step, and the mass; for exponents but 1 and 2."""
    powers = power(u, exponent - 1)
    slope = powers.sum(-1, keepdim=True)
    mass = powers.mul_(u).sum(-1, keepdim=True)
    return powers, _rise(mass, slope, exponent), mass


def _step(u: Tensor, exponent: float) -> tuple[Tensor, Tensor]:
    """The rise of tau by one Newton step on the norm, negative from a mass below one, and the mass; both (..., 1)."""
    if exponent == 1:
        mass, slope = u.sum(-1, keepdim=True), u.sign().sum(-1, keepdim=True)
    elif exponent == 2:
        # Not by torch's norm, which on a CPU adds up one square after the other: thousands of equal ones are all
        # rounded alike.
        mass, slope = (u * u).sum(-1, keepdim=True), u.sum(-1, keepdim=True)
    else:
        return _look(u, exponent)[1:]
    return _rise(mass, slope, exponent), mass


def solve_(u: Tensor, exponent: float) -> Tensor:
    """Turn ``u = [x - tau_0]_+`` in place into ``[x - tau]_+``, whose ``sum u^exponent`` is one.

    Args:
        u: (..., V) float32 or float64, non-negative, from any ``tau_0 <= tau``. A row of zeros (fully masked) stays
            zero; a row with a NaN becomes NaN, alone.
        exponent: ``1 / (alpha - 1)``, at least 1.

    Returns:
        ``u``. The threshold follows from the largest entry: ``tau = max x - max u``.

    Cost: two to eleven steps of three or four passes each, until all rows have converged.
    """
    if u.device.type != "cpu":
        # Reading the result of a stopping test would make the host wait for the device.
        return u.copy_(solve(u, exponent))
    # As tau rises the mass only falls towards one, so its value before a step bounds its value after. Within this
    # distance of one it is rounding noise, and the steps are too small to change u.
    eps = torch.finfo(u.dtype).eps
    tolerance = 3 * eps * max(2.0, exponent)
    if exponent >= 2:
        # Convergence is quadratic: a norm of 1 + d becomes at most 1 + (P - 1) / 2 * V * d^2 in the next step, for
        # there the norm's curvature is at most P - 1 times V over its slope squared, and that slope is at least 1.
        tolerance = max(tolerance, exponent * (eps / (exponent * max(1, u.shape[-1]))) ** 0.5)
    for _ in range(_MAX_STEPS):
        step, mass = _step(u, exponent)
        last = not bool((mass > 1 + tolerance).any())
        # Thousands of equal entries, rounded alike, may leave a mass well below one. To scale the weights up to it
        # would move the largest most; a last step back moves all u alike.
        if last and bool((mass < 1 - 8 * eps).any()):
            inside = u.sign()
            return u.sub_(step).clamp_(min=0).mul_(inside)
        u.sub_(step.clamp_(min=0)).clamp_(min=0)
        if last:
            break
    return u


def solve_with_powers(u: Tensor, exponent: float) -> tuple[Tensor, Tensor]:
    """``solve_`` on a CPU, and the powers ``u ** exponent`` of its result; the given u may be overwritten.

    Powers that are no products take a logarithm, most of the time of a step. So ``_near`` comes first, and the powers
    are those of the last step t, times ``(1 - t / u)^(P - 1)``, which by Bernoulli's inequality is at most
    ``1 / (1 + (P - 1) t / u)``. With that none is too small, and their true sum is at least one: none is too large by
    more than their sum is.

    Cost: that of ``_near``, and mostly two steps with a logarithm, or two and one more power where P is below two.
    """
    if exponent == int(exponent) or exponent > _MOST_ROUGH:
        u = solve_(u, exponent)
        return u, power(u, exponent)
    info = torch.finfo(u.dtype)
    rise = _near(u, exponent)
    _, step, _ = _look((u - rise).clamp_(min=0), exponent)
    # From either side to a lower bound, for the norm is convex; exactly to the start if that is the threshold.
    begun = rise + step > 4 * info.eps
    u.sub_(rise.mul_(begun)).sub_(step.mul_(begun)).clamp_(min=0)
    tolerance = 3 * info.eps * max(2.0, exponent)  # as in ``solve_``
    # Gradients have weights ``u^(P - 1)``: where u is as small as t, they would be off by about a tenth.
    smallest = max(2 * info.eps, (64 * info.eps) ** (1 / (exponent - 1)))
    for _ in range(_MAX_STEPS):
        powers, step, mass = _look(u, exponent)
        up = step.clamp(min=0)
        if bool((up > smallest).any()):
            powers = power(u.sub_(up).clamp_(min=0), exponent)
        else:
            ratio = torch.add(u, up, alpha=exponent - 1).clamp_(min=info.tiny)
            powers.mul_(torch.div(u.sub_(up).clamp_(min=0), ratio, out=ratio))
        if not bool((powers.sum(-1, keepdim=True) > 1 + tolerance).any()):
            break
    below = (mass < 1 - 8 * info.eps) & (mass > 0)
    if bool(below.any()):  # see ``solve_``
        inside = u.sign()
        u.sub_(step.mul_(below)).mul_(inside)
        return u, power(u, exponent)
    return u, powers


def _near(u: Tensor, exponent: float) -> Tensor:
    """(..., 1) by how much to raise tau to come near the threshold: from below, or a little above it.

    By Jensen's inequality n entries have a mass of n times the power of their mean, at least, and so the threshold is
    no lower than their mean less ``n^(-1 / P)``. Such steps need no powers, and hardly fall behind Newton's where P is
    small. Newton's steps on rough powers follow.

    Cost: one to five steps of ten passes, none of which takes a logarithm.
    """
    rise = torch.zeros_like(u[..., :1])
    left, powers = u.clone(), torch.empty_like(u)
    for _ in range(2 if exponent < 2 else 0):
        number = torch.sign(left, out=powers).sum(-1, keepdim=True).clamp_(min=1)
        rise += (left.sum(-1, keepdim=True) / number).sub_(number.pow_(-1 / exponent)).clamp_(min=0)
        torch.sub(u, rise, out=left).clamp_(min=0)
    for _ in range(_MOST_ROUGH_STEPS):
        _rough_power(left, exponent - 1, out=powers)
        slope = powers.sum(-1, keepdim=True)
        mass = powers.mul_(left).sum(-1, keepdim=True)
        rise += _rise(mass, slope, exponent).clamp_(min=0)
        if not bool((mass > 1.3).any()):
            break
        torch.sub(u, rise, out=left).clamp_(min=0)
    return rise


class NearSoftmax(NamedTuple):
    """A solution of ``near_softmax``.

    Attributes:
        weights: (..., V), their sum one but for rounding; zeros in a row that is masked.
        below: (..., V) ``x - r``, no lower than what still has weight.
        risen: (..., 1) r.
    """

    weights: Tensor
    below: Tensor
    risen: Tensor


def near_softmax(x: Tensor, alpha: float) -> NearSoftmax:
    """``[x - tau]_+ ^ P`` with mass one to rounding, for large exponents P in float32.

    ``x - tau = 1 + (x - r)`` with ``r = 1 + tau`` small, and ``log1p(x - r)`` has the digits that ``P`` multiplies.

    Args:
        x: (..., V) ``(alpha - 1) (z - max z)``, float32; ``-inf`` is masked, and a row of it stays without mass.
        alpha: above 1, below 1.5.

    Cost: two steps next to softmax, five at alpha 1.1, of nine passes each.
    """
    excess, exponent = alpha - 1, 1 / (alpha - 1)
    # So little of u that its power weighs nothing. Of smaller ones the products with a gradient would not be normal
    # numbers of float32, each of which costs a processor a hundred cycles.
    floor = 2.0 ** (-100 / exponent) - 1
    # The rounding of r alone changes the mass by a third of this.
    tolerance = 32 * torch.finfo(x.dtype).eps
    risen = torch.zeros_like(x[..., :1])
    for _ in range(_MAX_STEPS):
        below = torch.sub(x, risen).clamp_(min=floor)
        p = below.log1p().mul_(exponent / math.log(2)).exp2_()  # exp takes torch three times as long
        mass = p.sum(-1, keepdim=True)
        if not bool((mass > 1 + tolerance).any()):
            break
        slope = torch.div(p, below.add_(1), out=below).sum(-1, keepdim=True)
        step = mass * -torch.expm1(-excess * mass.clamp(min=1).log())
        risen += step / slope.clamp_(min=torch.finfo(x.dtype).tiny)
    return NearSoftmax(torch.threshold_(p, 2.0**-99, 0.0), below, risen)


def solve(u: Tensor, exponent: float) -> Tensor:
    """``solve_`` out of place and without a stopping test: a fixed number of steps, for compilers and devices.

    Rows built to be slow (clusters with sizes and distances in geometric progression, up to 300,000 entries) reached
    a mass of one to a part in a million within 16 steps for exponents up to 2, and within 7 from 3 on.
    """
    for _ in range(18 if exponent < 3 else 10):
        step, _ = _step(u, exponent)
        u = torch.where(u == 0, 0.0, u - step).clamp(min=0)  # a step back must not raise what has left the support
    return u
