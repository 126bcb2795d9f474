"""The two sums over pairs that Laha's multilabel losses consist of, in O(K log K)."""

from __future__ import annotations

import torch
from torch import Tensor


def pairwise_hinge(t: Tensor, positive: Tensor) -> Tensor:
    """``sum_{i < j positive} |t_i - t_j| + sum_{i positive, j negative} [t_j - t_i]_+`` for each row.

    Both sums are linear in t between ties: entry k enters with the number of pairs it lies above in minus the number
    it lies below in. One sort of the positives and two of everything count those pairs; tied pairs count for
    nothing, as ``|0|`` and ``[0]_+`` do.

    Args:
        t: shifted scores (N, K).
        positive: which entries are positive labels (N, K), bool.

    Returns:
        Sums (N,).
    """
    with torch.no_grad():
        values = t.detach().contiguous()
        high = torch.where(positive, values, torch.inf).sort(-1).values  # the positives, then padding
        low = torch.where(positive, torch.inf, values).sort(-1).values  # the negatives, then padding
        num_positive = positive.sum(-1, keepdim=True)
        positives_below = torch.searchsorted(high, values, right=False)
        positives_above = num_positive - torch.searchsorted(high, values, right=True).minimum(num_positive)
        num_negative = t.shape[-1] - num_positive
        negatives_above = num_negative - torch.searchsorted(low, values, right=True).minimum(num_negative)
        of_positive = positives_below - positives_above - negatives_above
        coefficient = torch.where(positive, of_positive, positives_below).to(t.dtype)
        # The coefficients sum to zero, so any constant may be taken off: with the maximum nothing large cancels.
        top = values.amax(-1, keepdim=True)
        top = torch.where(top.isinf(), 0.0, top)
    return torch.where(coefficient == 0, 0.0, (t - top) * coefficient).sum(-1)
