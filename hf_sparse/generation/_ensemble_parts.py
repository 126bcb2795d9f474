"""The encoders and the caches of several models, each behind the interface of one."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ..cache_name import CACHE


class JoinedEncoders(nn.Module):
    """Several encoders that read the same input; ``last_hidden_state`` holds their states side by side.

    Args:
        encoders: one per member.
    """

    def __init__(self, encoders: Iterable[nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, *args: object, **kwargs: object) -> BaseModelOutput:
        """The states (B, T, sum of the widths), from arguments that every encoder receives.

        Raises:
            ValueError: encoders that turn one input into different lengths.
        """
        states = [encoder(*args, **kwargs).last_hidden_state for encoder in self.encoders]
        lengths = [state.shape[1] for state in states]
        if len(set(lengths)) > 1:
            raise ValueError(f"the members' encoders turn one input into different lengths: {lengths}")
        return BaseModelOutput(last_hidden_state=torch.cat(states, dim=-1))


def split_states(joined: BaseModelOutput, members: Iterable[PreTrainedModel]) -> list[BaseModelOutput]:
    """Each member's part of the output of ``JoinedEncoders``, in the member's dtype."""
    models = list(members)
    # An encoder of one's own need have no configuration of its own.
    widths = [getattr(model.get_encoder(), "config", model.config).hidden_size for model in models]
    parts = joined.last_hidden_state.split(widths, dim=-1)
    return [BaseModelOutput(last_hidden_state=part.to(model.dtype)) for part, model in zip(parts, models)]


class JoinedCache(DynamicCache):
    """The layers of several caches in a row: an operation on every layer reaches every member's cache.

    Args:
        caches: one per member.
    """

    def __init__(self, caches: Sequence[Cache]) -> None:
        Cache.__init__(self, layers=[layer for cache in caches for layer in cache.layers])
        self._caches = caches

    def split(self) -> list[Cache]:
        """One cache per member, holding the layer objects that are now in its place."""
        members, start = [], 0
        for cache in self._caches:
            member = copy.copy(cache)
            member.layers = self.layers[start : start + len(cache.layers)]
            members.append(member)
            start += len(cache.layers)
        return members

    @property
    def is_compileable(self) -> bool:
        """False: ``generate`` would compile for the shapes of one model. Members may be compiled themselves."""
        return False


def join_caches(caches: Sequence[Cache]) -> Cache:
    """The caches of all members as one cache of the same kind."""
    if isinstance(caches[0], EncoderDecoderCache):
        own = JoinedCache([cache.self_attention_cache for cache in caches])
        return EncoderDecoderCache(own, JoinedCache([cache.cross_attention_cache for cache in caches]))
    return JoinedCache(caches)


def split_caches(cache: Cache) -> list[Cache]:
    """Each member's cache.

    Raises:
        TypeError: the cache does not come from an ensemble.
    """
    parts = [cache]
    if isinstance(cache, EncoderDecoderCache):
        parts = [cache.self_attention_cache, cache.cross_attention_cache]
    if not all(isinstance(part, JoinedCache) for part in parts):
        raise TypeError(
            f"{CACHE} must be a cache that the ensemble itself returned, was a {type(cache).__name__}; "
            "pass None to start with an empty one"
        )
    members = [part.split() for part in parts]
    return members[0] if len(parts) == 1 else [EncoderDecoderCache(*pair) for pair in zip(*members)]
