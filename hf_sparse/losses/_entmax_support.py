"""The entmax loss of long rows, on their supports alone: the logits are read once and never copied.

Forward solves each row on its few candidate entries. Backward writes zeros and scatters ``p - y`` over the support.
Between the two, only (index, weight) pairs are kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.candidates import solve_long_rows
from ..functional.negentropy import tsallis_negentropy
from ..functional.newton import exponent_of, power
from ..functional.rows import accumulation_dtype
from ..kernels import Supports, entmax_supports
from ._support_loss import SupportLoss, SupportWeights


def support_rows(z: Tensor, alpha: float, impl: str = "torch") -> Supports:
    """The supports of long rows z (N, V), solved by ``impl``: ``"cpp"``, or anything else for torch.

    Returns:
        ``Supports``, float64 where ``solve_long_rows`` says so.
    """
    if impl == "cpp":
        return entmax_supports(z, alpha, exponent_of(alpha))
    solved = solve_long_rows(z, alpha)
    p = power(solved.u, exponent_of(alpha))
    # (alpha - 1) Omega*(z) is the least value over tau of (1 - 1/alpha) sum u^(alpha / (alpha - 1)) + tau + 1/alpha:
    # what rounding has left in tau counts only squared. It is exactly zero where a single u is left, and is 1.
    energy = (p * solved.u).sum(-1)
    below_one = 1 - solved.u.amax(-1) if solved.u.shape[1] else torch.ones_like(energy)
    conjugate = ((1 - 1 / alpha) * (energy - 1) + below_one) / (alpha - 1)
    mass = p.sum(-1, keepdim=True)
    finite = solved.top < torch.inf
    p = torch.where(finite, p / torch.where(mass == 0, 1.0, mass), torch.nan)
    conjugate = torch.where(finite, conjugate[:, None].masked_fill(mass == 0, 0.0), torch.nan)[:, 0]
    return Supports(solved.columns, p, solved.top, conjugate, solved.crowded)


def entmax_rows_loss(z: Tensor, y: Tensor, alpha: float, impl: str = "torch") -> tuple[Tensor, Tensor]:
    """The entmax loss of the rows whose support is short, and which rows those are.

    Args:
        z: scores (N, V), any floating-point dtype, V at least 1024.
        y: classes (N,), int64, or distributions (N, V).
        alpha: in (1, 2].
        impl: what solves the rows, ``"torch"`` or ``"cpp"``.

    Returns:
        Losses (N,), float32 or float64, and a mask (N,) of the rows that need a dense solve instead, whose losses
        here mean nothing.

    Cost: forward one read of z, backward zeros and a scatter; O(N C) memory between them.
    """
    with torch.no_grad():
        solved = support_rows(z, alpha, impl)
        top = solved.top.masked_fill(solved.top == -torch.inf, 0.0)
        if y.is_floating_point():
            gold = torch.where(y > 0, (z.to(y.dtype) - top) * y, 0.0).sum(-1)
            loss = solved.conjugate + tsallis_negentropy(y, alpha) - gold
        else:
            loss = solved.conjugate - (z.gather(-1, y[:, None]).to(top.dtype) - top)[:, 0]
        loss = loss.to(accumulation_dtype(z))
    if torch.is_grad_enabled() and z.requires_grad:
        p = SupportWeights.apply(z, solved.p, solved.columns, alpha, True)
        loss = SupportLoss.apply(z, loss, p, solved.columns, y, impl)
    return loss, solved.crowded
