"""The scores of attention: what they are made of, as one record that every step from the call to the kernel takes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Scores(NamedTuple):
    """The scores ``softcap(scaling q k^T) + bias + mask``, the keys that are hidden, and the alpha that maps them.

    Attributes:
        alpha: (heads,) float32, above 1.
        exponent: ``1 / (alpha - 1)`` where all heads share it, else 0. At 1, 2, 3 and 4 the kernels multiply instead
            of computing powers.
        scaling: factor on the dot products.
        causal: the last query sees all keys, each one before it one less.
        window: a query sees its own key and the window - 1 before it; None for all.
        softcap: ``softcap tanh(scores / softcap)``, or None.
        bias: added, (batch, heads, queries, keys), some axes of stride 0.
        mask: the same shape; boolean (True is visible), or added, and hidden in the lower half of its dtype's range.
        sinks: (heads,) scores that take weight and give nothing, or None.
    """

    alpha: Tensor
    exponent: float
    scaling: float
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    bias: Tensor | None = None
    mask: Tensor | None = None
    sinks: Tensor | None = None
