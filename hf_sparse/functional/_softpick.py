"""softpick (Zuhri et al. 2025): a rectified softmax whose weights need not sum to one."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import SparseMap, register
from .rows import map_rows


def softpick(z: Tensor, dim: int = -1) -> Tensor:
    """``p_i = max(e^{z_i} - 1, 0) / sum_j |e^{z_j} - 1|`` over the scores that are not masked.

    The weights are for attention. Scores up to 0 have no weight, and those below 0 still take from the others: the
    weights sum to at most one, and to zero where no score is positive.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        dim: the axis to map.

    Returns:
        Weights in [0, 1] with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros, and so do scores
        that are all 0, where the quotient has no limit; the paper adds 1e-6 to the sum instead.

    Raises:
        TypeError, IndexError, ValueError: see ``entmax``.

    Source: Zuhri et al. 2025, Softpick: No Attention Sink, No Massive Activations with Rectified Softmax.
    Cost: that of softmax and two passes.

    >>> softpick(torch.log(torch.tensor([3.0, 2.0, 0.5, 1.0])))  # 2, 1, -1/2 and 0, over 3.5
    tensor([0.5714, 0.2857, 0.0000, 0.0000])
    """

    def rows(x: Tensor) -> Tensor:
        masked = x == -torch.inf
        x = x.masked_fill(masked, 0.0)  # where the difference, and so its share of the sum, is 0
        above, below = torch.relu(x), -torch.relu(-x)
        largest = x.detach().amax(-1, keepdim=True).clamp(min=0.0)
        # e^x - 1 over e^largest, by expm1: small scores keep their digits, and no argument overflows.
        gained = -torch.expm1(-above) * (above - largest).exp()
        lost = -torch.expm1(below) * (-largest).exp()
        total = (gained + lost).sum(-1, keepdim=True)
        return gained / torch.where(total == 0, 1.0, total)

    return map_rows(rows, z, dim)


register(SparseMap("softpick", softpick, None, normalized=False, shift_invariant=False))
