"""How many classes a distribution keeps."""

from __future__ import annotations

from torch import Tensor


def support_size(p: Tensor, dim: int = -1) -> Tensor:
    """``|{i : p_i != 0}|``, the number of classes with nonzero weight.

    Args:
        p: weights (..., V), any dtype.
        dim: the axis of the classes.

    Returns:
        Counts (...), int64, in classes.

    Source: Peters et al. 2019, Table 3 (number of nonzeros).
    Cost: one pass.

    >>> import torch
    >>> support_size(torch.tensor([[0.7, 0.3, 0.0], [1.0, 0.0, 0.0]]))
    tensor([2, 1])
    """
    return (p != 0).sum(dim)
