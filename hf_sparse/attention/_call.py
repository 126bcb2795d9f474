"""One call of the attention interface, as ``sparse_attention`` hands it on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from .mask import PatternMask

# Arguments of a model that this package does not know by name.
Arguments: TypeAlias = Mapping[str, Any]


class AttentionCall(NamedTuple):
    """The arguments of one call; every field means what it means in ``sparse_attention``.

    Attributes:
        mask: hides keys besides those that ``causal`` and ``window`` hide, or adds to scores.
        causal: hide later keys; the last query sees every key.
        window: keys that a query sees, its own and those before it; None for all. Only where causal.
        dropout: probability of dropping a weight, 0 outside training.
        query_sinks: ``sinks`` of ``sparse_attention``.
        temperature: divides the scores, those of sinks too; a number, or (heads,).
        wants_weights: whether the caller asked for the matrix of weights.
        others: arguments that the model passed beyond those named in ``sparse_attention``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | BlockMask | None
    scaling: float
    causal: bool = False
    window: int | None = None
    dropout: float = 0.0
    softcap: float | None = None
    position_bias: Tensor | None = None
    s_aux: Tensor | None = None
    query_sinks: Tensor | None = None
    indices: Tensor | None = None
    temperature: float | Tensor = 1.0
    wants_weights: bool = False
    others: Arguments = MappingProxyType({})

    def with_pattern(self) -> AttentionCall:
        """The same call with a ``PatternMask`` split into ``mask``, ``causal`` and ``window``."""
        mask = self.mask
        if not isinstance(mask, PatternMask):
            return self
        if not mask.is_known_for(self.query, self.key):
            return self._replace(mask=mask.materialized())
        return self._replace(mask=mask.padding, causal=mask.causal, window=mask.window)

    def with_matrix(self) -> AttentionCall:
        """The same call with a ``PatternMask`` materialized."""
        return self._replace(mask=self.mask.materialized()) if isinstance(self.mask, PatternMask) else self
