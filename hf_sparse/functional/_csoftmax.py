"""csoftmax: softmax under upper bounds on the weights, for attention with fertility."""

from __future__ import annotations

import torch
from torch import Tensor

from ._softmax import softmax, softmax_rows
from .bounds import CREDIT, ROUNDS_BEFORE_SORTING, map_bounded_rows, settled_or_sorted
from .registry import SparseMap, UpperBounds, register


def csoftmax(z: Tensor, u: Tensor, dim: int = -1) -> Tensor:
    """The distribution nearest to ``softmax(z)`` in Kullback-Leibler divergence among those with ``p <= u``.

    Some entries are clipped to their bound; the others share the remaining mass as softmax does.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        u: upper bounds, broadcastable to ``z``; non-negative (-1e-6 counts as 0), ``inf`` for none. The bounds of the
            unmasked entries must sum to at least 1 (less 1e-4).
        dim: the axis to map.

    Returns:
        Probabilities, shape and dtype of ``z``; differentiable in z and u. A fully masked row gives zeros.

    Raises:
        TypeError, IndexError: see ``entmax``.
        ValueError: negative or infeasible bounds, or an empty axis.

    Source: Malaviya et al. 2018, Eq. 5 and appendix (Algorithm and gradients), here in log space.
    Cost: a few passes; one sort for rows whose bounds bind one after another, and off the CPU.

    >>> csoftmax(torch.tensor([1.2, 0.8, -0.2]), torch.tensor([0.5, 1.0, 1.0]))
    tensor([0.5000, 0.3655, 0.1345])
    """
    return map_bounded_rows(_csoftmax_rows, z, u, dim)


def _csoftmax_rows(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The weights, and a mask of those at their bound."""
    clipped = _clipped(x.detach(), u.detach())
    # Given the clipped entries, p is a softmax over the others, and autograd computes the gradients from here.
    remaining = 1 - torch.where(clipped, u, 0.0).sum(-1, keepdim=True)
    remaining = remaining - remaining.detach().clamp(max=0)  # bounds that sum to one may be rounded to more
    return torch.where(clipped, u, softmax_rows(x.masked_fill(clipped, -torch.inf)) * remaining), clipped


def _clipped_in_rounds(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The entries at their bound, by clipping those above it: the shares of the others only grow with that."""
    clipped = torch.zeros_like(x, dtype=torch.bool)
    for _ in range(ROUNDS_BEFORE_SORTING):
        remaining = 1 - torch.where(clipped, u, 0.0).sum(-1, keepdim=True)
        exceeds = softmax_rows(x.masked_fill(clipped, -torch.inf)) * remaining > u
        unsettled = exceeds.any(-1, keepdim=True)
        if not bool(unsettled.any()):
            break
        clipped |= exceeds
    return clipped, ~unsettled


def _clipped_by_sorting(x: Tensor, u: Tensor) -> Tensor:
    """The entries at their bound: a prefix in descending order of ``e^x / u``, never a masked entry."""
    log_u = u.log()
    ratio = torch.where(x == -torch.inf, -torch.inf, x - log_u)
    order = ratio.argsort(-1, descending=True)
    x, log_u, u = (values.gather(-1, order) for values in (x, log_u, u))
    # Were the entries before this one clipped, it would get e^x (1 - their mass) / (sum of e^x from here on). In log
    # space, since the sums themselves underflow where the clipped entries have all the mass.
    log_rest = x.flip(-1).logcumsumexp(-1).flip(-1)
    before = u.clamp(max=1)
    remaining = 1 - (before.cumsum(-1) - before)
    share = x + remaining.clamp(min=0).log() - log_rest
    clipped = share > log_u
    return torch.zeros_like(clipped).scatter(-1, order, clipped)


_clipped = settled_or_sorted(_clipped_in_rounds, _clipped_by_sorting)


register(
    SparseMap(
        "csoftmax",
        csoftmax,
        regularizer=None,
        settings=CREDIT,
        bounds=UpperBounds(_csoftmax_rows, slope=lambda p: p, unbounded=softmax),
    )
)
