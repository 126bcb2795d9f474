"""Multi-hot label rows as distributions: the target ``eta`` of every multilabel loss."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.rows import accumulation_dtype, in_graph


def label_distribution(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """``eta = y / ||y||_1`` in the compute dtype of the loss (N, K), and whether the row has a positive label (N,).

    Raises:
        TypeError: logits that are not floating-point.
        ValueError: shapes that differ, no classes, or a label below 0 or not finite.
    """
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating-point, were {logits.dtype}")
    if logits.shape != labels.shape or logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError(
            f"logits and labels must both be (..., K), K >= 1, were {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    y = labels.reshape(-1, labels.shape[-1]).to(accumulation_dtype(logits))
    if not in_graph() and not bool(((y >= 0) & (y < torch.inf)).all()):
        raise ValueError(f"labels must be finite and >= 0 (multi-hot), the lowest was {float(y.min())}")
    total = y.sum(-1, keepdim=True)
    return y / torch.where(total == 0, 1.0, total), total[:, 0] > 0
