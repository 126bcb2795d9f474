"""The size of the scores, which decides how sparse a map of them comes out."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.rows import upcast


def logit_norm(logits: Tensor, dim: int = -1, centered: bool = False) -> Tensor:
    """``||z||_2``, or ``||z - mean z||_2``, which is blind to the constant that softmax and entmax ignore too.

    Args:
        logits: scores z (..., V), unmasked.
        dim: the axis of the classes.
        centered: subtract the mean over ``dim`` first.

    Returns:
        Norms (...), float32 (float64 for float64 scores), in units of the scores. Divided by ``sqrt(V)`` the centered
        norm is the standard deviation that ``tau`` of alpha-ReLU is estimated from.

    Raises:
        TypeError: scores that are not floating-point.

    Source: Tezekbayev et al. 2022, Section 4.4 (tau from the spread of the logits).
    Cost: one pass, two when centered.

    >>> import torch
    >>> logit_norm(torch.tensor([[3.0, 4.0]])), logit_norm(torch.tensor([[3.0, 5.0]]), centered=True)
    (tensor([5.]), tensor([1.4142]))
    """
    if not logits.is_floating_point():
        raise TypeError(f"scores must be floating-point, were {logits.dtype}")
    z = upcast(logits)
    if centered:
        z = z - z.mean(dim, keepdim=True)
    return torch.linalg.vector_norm(z, dim=dim)
