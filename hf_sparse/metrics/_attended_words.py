"""How many source words a translation looks at."""

from __future__ import annotations

from torch import Tensor


def attended_words(weights: Tensor, target_mask: Tensor | None = None) -> Tensor:
    """``|{j : sum_t a_tj > 0}|``, the source words that at least one target word attends to.

    Under softmax it is all of them; ``support_size(weights)`` is how many each single target word attends to.

    Args:
        weights: attention (..., targets, sources), at least 0, any dtype.
        target_mask: (..., targets), 0 at target positions that do not count, such as padding; None counts all.

    Returns:
        Counts (...), int64, in source words.

    Cost: one pass.

    >>> import torch
    >>> attended_words(torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]))
    tensor(2)
    """
    attended = weights > 0
    if target_mask is not None:
        attended = attended & target_mask.bool().unsqueeze(-1)
    return attended.any(-2).sum(-1)
