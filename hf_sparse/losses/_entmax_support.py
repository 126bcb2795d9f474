"""The entmax loss of long rows, computed on their supports: the logits are read once and never copied.

The forward pass solves each row on its few candidate entries; the backward pass writes zeros and scatters ``p - y``
over the support. Only (column, weight) pairs are kept between the two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.candidates import solve_long_rows
from ..functional.chunks import MOST_CHUNKS
from ..functional.newton import exponent_of, power
from ..functional.rows import accumulation_dtype
from ..kernels import Supports, entmax_supports
from ._cpp_loss import with_cpp_gradient
from ._row_terms import from_conjugate
from ._support_gradient import SupportLoss, SupportWeights


def entmax_row_supports(z: Tensor, alpha: float, impl: str = "torch") -> Supports:
    """The supports of alpha-entmax in long rows, without a gradient.

    Args:
        z: scores (N, V), any floating-point dtype, V at least 1024.
        alpha: in (1, 2].
        impl: ``"cpp"``; anything else means torch.

    Returns:
        ``Supports``: float32, or float64 for float64 scores and for alpha below 1.1.
    """
    if impl == "cpp":
        return entmax_supports(z, alpha, exponent_of(alpha))
    solved = solve_long_rows(z, alpha, MOST_CHUNKS)
    p = power(solved.u, exponent_of(alpha))
    # (alpha - 1) Omega*(z) is the least value over tau of (1 - 1/alpha) sum u^(alpha / (alpha - 1)) + tau + 1/alpha:
    # a rounding error of tau enters only squared. It is exactly zero where the only positive u is 1.
    energy = (p * solved.u).sum(-1)
    below_one = 1 - solved.u.amax(-1) if solved.u.shape[1] else torch.ones_like(energy)
    conjugate = ((1 - 1 / alpha) * (energy - 1) + below_one) / (alpha - 1)
    mass = p.sum(-1, keepdim=True)
    p = p / torch.where(mass == 0, 1.0, mass)
    # A row that holds NaN or inf lists no weight, and has those of the dense formula.
    left = solved.crowded | ~(solved.top < torch.inf)[:, 0]
    return Supports(solved.columns, p, solved.top, conjugate.masked_fill(mass[:, 0] == 0, 0.0), left)


def entmax_support_loss(z: Tensor, y: Tensor, alpha: float, impl: str = "torch") -> tuple[Tensor, Tensor]:
    """The entmax loss of the rows whose support is small enough to be listed.

    Args:
        z: scores (N, V), any floating-point dtype, V at least 1024.
        y: classes (N,), int64, or distributions (N, V).
        alpha: in (1, 2].
        impl: ``"cpp"``; anything else means torch.

    Returns:
        Losses (N,), float32 or float64, and a mask (N,) of the rows that are left: their losses here mean nothing, and
        they need a dense solve.

    Cost: one read of z in the forward pass, zeros and a scatter in the backward; O(N C) memory between them.
    """
    with torch.no_grad():
        solved = entmax_row_supports(z, alpha, impl)
        top = solved.top.masked_fill(solved.top == -torch.inf, 0.0)
        loss = from_conjugate(solved.conjugate, z, y, top, alpha).to(accumulation_dtype(z))
    wanted = torch.is_grad_enabled() and z.requires_grad
    if solved.solution is not None and bool(solved.crowded.any()):
        loss = with_cpp_gradient(z, loss, y, solved, alpha) if wanted else loss
        return loss, torch.zeros_like(solved.crowded)
    if wanted:
        p = SupportWeights.apply(z, solved.p, solved.columns, alpha, True)
        loss = SupportLoss.apply(z, loss, p, solved.columns, y, impl)
    return loss, solved.crowded
