"""Draws from distributions: a few classes with weights whose mean is the distribution, at the least variance."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["DrawnSupport", "drawn_support"]


class DrawnSupport(NamedTuple):
    """Estimates q of N distributions p, with at most K classes each.

    Attributes:
        ids: (N, K) classes, first those that are kept for certain, likeliest first, then those that are drawn.
        q: (N, K) their weights in float64; p of the former, one threshold c > p for all of the latter. 0 at the end of
            rows with fewer than K classes.
        num_certain: (N,) how many are kept for certain, those of weight 0 among them.
    """

    ids: Tensor
    q: Tensor
    num_certain: Tensor


def drawn_support(p: Tensor, draws: int, offset: Tensor) -> DrawnSupport:
    """``q_i = p_i`` where ``p_i >= c``; of the others each is kept with probability ``p_i / c``, and weighs c.

    The threshold c solves ``sum_i min(1, p_i / c) = draws``. One offset u, uniform in [0, 1), draws all classes below
    it: those at which the running sum of ``p_i / c`` passes ``u, u + 1, u + 2, ...``, which is systematic sampling.

    Theorem. Let p be a distribution with more than K = ``draws`` classes of nonzero probability. Then q has K classes,
    sums to one, and ``E q = p``; no other random q with ``E q = p`` and at most K classes in the mean has a smaller
    ``E |q - p|^2``, which is the sum of ``p_i (c - p_i)`` over the classes below c. A p with no more than K classes is
    q itself.

    Proof. An interval of length ``p_i / c < 1`` holds one of the points ``u + j`` with that probability: ``E q_i =
    p_i``. The lengths sum to ``K - k`` where k classes are certain, so that ``K - k`` classes of weight c join them,
    with the mass of all below. For any unbiased q with ``pi_i = P(q_i != 0)``, ``E q_i^2 >= p_i^2 / pi_i`` (Cauchy and
    Schwarz), and ``sum_i p_i^2 / pi_i`` with ``pi_i <= 1`` and ``sum_i pi_i <= K`` is least at ``min(1, p_i / c)``.

    The gradient of a Fenchel-Young loss by the logits is the student's weights less q. It is linear in q, and so is
    that by the parameters: both are unbiased. The loss is larger in the mean, by ``E Omega(q) - Omega(p)``, whatever
    the student.

    Args:
        p: (N, V) distributions, float32 or float64; rows may sum to less or more, and q has their sum.
        draws: K, at least 1.
        offset: (N,) offsets u in [0, 1), float32, on the device of p.

    Returns:
        The estimates, with ``K = min(draws, V)``.

    Source: Fearnhead and Clifford 2003, Section 3 (the least variance); Madow 1949 (systematic sampling); Cohen et al.
    2011 (the same threshold for streams). Anshumann et al. 2025 draw with replacement (RS-KD) for the same purpose.
    Cost: the likeliest ``draws`` classes, and a running sum over V in float64.

    >>> p = torch.tensor([[0.5, 0.3, 0.1, 0.06, 0.04]])
    >>> drawn_support(p, 3, torch.tensor([0.4])).ids  # c = 0.2; running sums 0.5, 0.8 and 1 pass 0.4 at class 2
    tensor([[0, 1, 2]])
    >>> drawn_support(p, 3, torch.tensor([0.6])).q
    tensor([[0.5000, 0.3000, 0.2000]], dtype=torch.float64)
    """
    p = p.double()
    q, ids = p.topk(min(draws, p.shape[-1]))
    below = p.scatter(-1, ids, 0.0)
    place = torch.arange(q.shape[-1], device=p.device)
    mass = q.flip(-1).cumsum(-1).flip(-1) + below.sum(-1, keepdim=True)  # of the class at each place and all after it
    # c is the mass of those after the certain ones, divided among the places left. A class at c, as where all are
    # equally likely, is certain: not left to rounding.
    certain = (q * (draws - place) >= mass * (1 - 1e-12)).cumprod(-1).bool()
    below = below.scatter(-1, ids, q.masked_fill(certain, 0.0)).cumsum(-1)
    num_certain = certain.sum(-1, keepdim=True)
    threshold = below[:, -1:] / (draws - num_certain).clamp(min=1)
    points = (offset[:, None].double() + place - num_certain) * threshold
    drawn = torch.searchsorted(below, points, right=True)
    return DrawnSupport(ids.where(certain, drawn), q.where(certain, threshold), num_certain[:, 0])
