"""One call of the attention interface, as ``sparse_attention`` hands it on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from ..functional.rows import lowest_visible
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
        temperature: divides the scores, those of sinks too; a number, or (heads,). See ``divided``.
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
        """The same call with a ``PatternMask`` materialized, or left out where it hides nothing."""
        mask = self.mask
        if not isinstance(mask, PatternMask):
            return self
        return self._replace(mask=None if mask.hides_nothing_from(self.query, self.key) else mask.materialized())

    def visible_keys(self) -> Tensor:
        """How many keys each query sees, (batch or 1, heads or 1, queries or 1, 1); for a mask that only hides."""
        queries, keys = self.query.shape[2], self.key.shape[2]
        mask = self.query.new_ones(1, dtype=torch.bool) if self.mask is None else self.mask
        assert isinstance(mask, Tensor)
        mask = mask[(None,) * (4 - mask.dim())].expand(-1, -1, -1, keys)
        if not self.causal:
            return mask.sum(-1, keepdim=True)
        if mask.shape[2] > 1:
            return (mask & _visible(self, slice(0, queries))).sum(-1, keepdim=True)
        before = nn.functional.pad(mask.cumsum(-1), (1, 0))  # the visible keys before each key, and at last all
        end = torch.arange(keys - queries + 1, keys + 1, device=mask.device)
        begin = end - (keys if self.window is None else self.window)
        return (before[..., end.clamp(min=0)] - before[..., begin.clamp(min=0)]).mT

    def divided(self) -> AttentionCall:
        """The call of temperature 1 that has the same scores after division.

        One temperature divides what scores are scaled by; those of heads divide the queries, in float32, and receive a
        gradient. Not for a ``PatternMask``, a sink for each query, or temperatures of heads under a soft cap.
        """
        temperature = self.temperature
        if not torch.is_tensor(temperature):
            if temperature == 1:
                return self
            softcap = None if self.softcap is None else self.softcap / temperature
            call = self._replace(scaling=self.scaling / temperature, softcap=softcap)
        else:
            temperature = temperature.view(-1, 1, 1)
            call = self._replace(query=(self.query / temperature).to(self.query.dtype))
        mask, bias, sinks = self.mask, self.position_bias, self.s_aux
        return call._replace(
            temperature=1.0,
            mask=_divided(mask, temperature) if is_added(mask) else mask,
            position_bias=_divided(bias, temperature) if is_added(bias) else bias,
            s_aux=None if sinks is None else _divided(sinks.view(-1, 1, 1), temperature).flatten(),
        )

    def parts(self, num_scores: int) -> Iterator[AttentionCall]:
        """The call in parts of at most ``num_scores`` scores, or of one query: some queries of one sequence each.

        For calls that a backend without weights serves: without selected keys, or a sink for each query.
        """
        batch, heads, queries, _ = self.query.shape
        keys = self.key.shape[2]
        if batch * heads * queries * keys <= num_scores:
            yield self
            return
        call = self.with_pattern()
        assert not isinstance(call.mask, BlockMask)
        height = max(1, num_scores // (heads * keys))
        for sequence in range(batch):
            for start in range(0, queries, height):
                place = slice(sequence, sequence + 1), slice(start, min(start + height, queries))
                mask = _part(call.mask, *place)
                if call.causal:
                    visible = _visible(call, place[1])
                    mask = visible if mask is None else visible & mask
                query = call.query[place[0], :, place[1]]
                key, value, bias = call.key[place[0]], call.value[place[0]], _part(call.position_bias, *place)
                yield call._replace(
                    query=query, key=key, value=value, mask=mask, causal=False, window=None, position_bias=bias
                )


def is_added(x: Tensor | BlockMask | None) -> TypeGuard[Tensor]:
    """Whether a mask or bias is added to scores, rather than only telling which keys are hidden."""
    return isinstance(x, Tensor) and x.dtype != torch.bool


def _divided(x: Tensor, temperature: float | Tensor) -> Tensor:
    """What is added to scores, divided in its own dtype; a number that hides a key stays as it is."""
    return torch.where(x > lowest_visible(x.dtype), (x / temperature).to(x.dtype), x)


def _part(x: Tensor | None, sequence: slice, queries: slice) -> Tensor | None:
    """The part of what broadcasts to (batch, heads, queries, keys)."""
    if x is None:
        return None
    x = x[(None,) * (4 - x.dim())]
    return x[sequence if x.shape[0] > 1 else slice(None), :, queries if x.shape[2] > 1 else slice(None)]


def _visible(call: AttentionCall, queries: slice) -> Tensor:
    """(queries, keys), True where a query of a causal call sees a key."""
    num_queries, num_keys = call.query.shape[2], call.key.shape[2]
    key = torch.arange(num_keys, device=call.key.device)
    own = torch.arange(queries.start, queries.stop, device=call.key.device)[:, None] + (num_keys - num_queries)
    visible = key <= own
    return visible if call.window is None else visible & (own - key < call.window)
