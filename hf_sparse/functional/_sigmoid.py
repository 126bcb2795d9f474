"""Sigmoid attention (Ramapuram et al. 2024), with its bias of minus the logarithm of the number of keys."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import Setting, SparseMap, register
from .rows import check_scores, map_rows, num_visible


def sigmoid(z: Tensor, bias: float | str | Tensor = "length", dim: int = -1) -> Tensor:
    """``p_i = 1 / (1 + exp(-z_i - b))``, by default with ``b = -log n``, n the number of unmasked scores in the row.

    The weights are for attention. They do not sum to one, and only those of masked scores are zero. With ``-log n``
    they are ``e^z / (n + e^z)``: about ``1 / n`` each at scores of 0, as softmax's are. The paper's n is the length of
    the sequence; here it is the number of keys that the query sees, see ``relu_over_n``. For the paper's fixed bias
    give the number, ``-log`` of the length that the model was trained with.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        bias: ``"length"`` for ``-log n``; or a number up to 1e6 in size; or a tensor of such (not checked),
            broadcastable to ``z``, which receives a gradient.
        dim: the axis to map.

    Returns:
        Weights in [0, 1], shape and dtype of ``z``. A fully masked row gives zeros.

    Raises:
        TypeError: ``z`` is not a floating-point tensor, or ``bias`` neither a number, nor such a tensor, nor the word.
        ValueError: a number out of range, a tensor that does not broadcast to ``z``, or an empty axis.
        IndexError: ``dim`` is out of range.

    Source: Ramapuram et al. 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention, Section 2.
    Cost: three passes; two with a number.

    >>> sigmoid(torch.tensor([0.0, 0.0, 0.0, -torch.inf]))  # 1 / (1 + 3)
    tensor([0.2500, 0.2500, 0.2500, 0.0000])
    >>> sigmoid(torch.tensor([0.0, 2.0]), bias=-2.0)
    tensor([0.1192, 0.5000])
    """
    check_scores(z, dim)
    if isinstance(bias, str):
        BIAS.check("bias", bias)
        return map_rows(lambda x: torch.sigmoid(x - num_visible(x).log()), z, dim)
    b = BIAS.broadcast("bias", bias, z, dim)
    return map_rows(lambda x: torch.sigmoid(x + b), z, dim)


BIAS = Setting.between(-1e6, 1e6, default="length", words=("length",))

register(
    SparseMap(
        "sigmoid",
        sigmoid,
        None,
        settings={"bias": BIAS},
        normalized=False,
        elementwise=True,
        shift_invariant=False,
    )
)
