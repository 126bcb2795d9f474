"""One call of the attention interface, as the tiers see it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask


class AttentionCall(NamedTuple):
    """One call of the attention interface, every argument with the meaning it has in ``sparse_attention``.

    Attributes:
        mask: what is hidden beside later keys and those out of the window, or added.
        causal: hide later keys; the last query sees all of them.
        window: the keys that a query sees, its own and those before it; None for all. Only where causal.
        query_sinks: ``sinks`` of ``sparse_attention``.
        wants_weights: whether somebody asked for the matrix of weights.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | BlockMask | None
    scaling: float
    causal: bool
    window: int | None
    dropout: float
    softcap: float | None
    position_bias: Tensor | None
    s_aux: Tensor | None
    query_sinks: Tensor | None
    indices: Tensor | None
    wants_weights: bool
