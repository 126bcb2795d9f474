"""What several models remember of one text, seen by ``generate`` as one cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from transformers import Cache, DynamicCache, EncoderDecoderCache


class EnsembleCache(DynamicCache):
    """The layers of several caches in a row, so that what is done to every layer is done in every member's cache.

    Args:
        caches: one for each member.
    """

    def __init__(self, caches: Sequence[Cache]) -> None:
        Cache.__init__(self, layers=[layer for cache in caches for layer in cache.layers])
        self._caches = caches

    def split(self) -> list[Cache]:
        """One cache for each member, with the layers, the very same, that are now in its place."""
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


def join_caches(caches: Sequence[Any]) -> Cache:
    """The caches of all members as one of the same kind."""
    if isinstance(caches[0], EncoderDecoderCache):
        own = EnsembleCache([cache.self_attention_cache for cache in caches])
        return EncoderDecoderCache(own, EnsembleCache([cache.cross_attention_cache for cache in caches]))
    return EnsembleCache(caches)


def split_caches(cache: Any) -> list[Cache]:
    """Each member's cache.

    Raises:
        TypeError: the cache is not one of an ensemble.
    """
    parts = [cache]
    if isinstance(cache, EncoderDecoderCache):
        parts = [cache.self_attention_cache, cache.cross_attention_cache]
    if not all(isinstance(part, EnsembleCache) for part in parts):
        raise TypeError(
            f"past_key_values must be a cache that the ensemble itself returned, was a {type(cache).__name__}; "
            "pass None to start with an empty one"
        )
    members = [part.split() for part in parts]
    return members[0] if len(parts) == 1 else [EncoderDecoderCache(*pair) for pair in zip(*members)]
