"""What several models remember of one text, seen by ``generate`` as one cache."""

from __future__ import annotations

from typing import Any

from transformers import Cache, EncoderDecoderCache


class EnsembleCache(Cache):
    """The caches of an ensemble's members, with all their layers.

    Whatever is done to every layer, as beam search does when it reorders them, is done to every member; a member
    reads and writes its own cache in ``members``.

    Args:
        members: one cache for each member, in their order.
    """

    def __init__(self, members: list[Cache]) -> None:
        # Not Cache.__init__, which would make a second list of layers: members add theirs as they run.
        self.members = members
        self.offloading = False

    @property
    def layers(self) -> list[Any]:  # type: ignore[override]
        """The layers of the first member, of the second, and so on."""
        return [layer for cache in self.members for part in _parts(cache) for layer in part.layers]

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens of the text; what was read from the encoder stays."""
        for cache in self.members:
            cache.crop(tokens_to_remove)

    @property
    def is_croppable(self) -> bool:
        """Whether every member can go back."""
        return all(cache.is_croppable for cache in self.members)

    @property
    def is_compileable(self) -> bool:
        """False: ``generate`` compiles what has a cache of one model's shapes. Members may be compiled themselves."""
        return False


def _parts(cache: Any) -> tuple[Cache, ...]:
    if isinstance(cache, EncoderDecoderCache):
        return cache.self_attention_cache, cache.cross_attention_cache
    return (cache,)
