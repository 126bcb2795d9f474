"""The prefixes that a search has expanded, with their keys and values: a shared beginning is stored once."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)


class GrowingRows:
    """A tensor that grows along its first axis, in amortized linear time."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Tensor) -> Tensor:
        assert self._buffer is not None
        return self._buffer[index]

    def append(self, rows: Tensor) -> None:
        """Add ``rows`` (n, ...) at the end."""
        end = self._length + len(rows)
        if self._buffer is None or end > len(self._buffer):
            larger = rows.new_empty(max(end, 2 * self._length), *rows.shape[1:])
            if self._buffer is not None:
                larger[: self._length] = self._buffer[: self._length]
            self._buffer = larger
        self._buffer[self._length : end] = rows
        self._length = end


class PrefixTree:
    """Every expanded prefix but the empty one, numbered: its last token and its path from the root.

    Args:
        max_length: number of tokens of the longest prefix.
    """

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._tokens = GrowingRows()
        self._paths = GrowingRows()

    def add(self, parents: Tensor, tokens: Tensor, length: int) -> Tensor:
        """Number new prefixes of ``length`` tokens.

        Args:
            parents: (n,) numbers of the prefixes that they are one token longer than.
            tokens: (n,) their last tokens.
            length: number of tokens.

        Returns:
            Their numbers (n,).
        """
        nodes = torch.arange(len(tokens), device="cpu") + len(self._tokens)
        paths = torch.full((len(tokens), self._max_length), -1, dtype=torch.long, device="cpu")
        paths[:, : length - 1] = self.path(parents, length - 1)
        paths[:, length - 1] = nodes
        self._tokens.append(tokens)
        self._paths.append(paths)
        return nodes

    def path(self, nodes: Tensor, length: int) -> Tensor:
        """The prefixes (n, length) from the root to prefixes (n,) of ``length`` tokens, which come last."""
        return self._paths[nodes][:, :length] if length else torch.empty(len(nodes), 0, dtype=torch.long, device="cpu")

    def strings(self, nodes: Tensor, length: int) -> Tensor:
        """The tokens (n, length) of prefixes (n,) of ``length`` tokens."""
        return self._tokens[self.path(nodes, length)] if length else self.path(nodes, 0)


def check_shareable(cache: Cache) -> None:
    """Refuse a cache that prefixes cannot share.

    Raises:
        ValueError: a layer that is no plain or sliding one of keys and values.
    """
    encoder_decoder = isinstance(cache, EncoderDecoderCache)
    for part in (cache.self_attention_cache, cache.cross_attention_cache) if encoder_decoder else (cache,):
        for layer in part.layers:
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer):
                raise ValueError(
                    f"exact search cannot share a cache with layers of type {type(layer).__name__} between prefixes; "
                    "pass use_cache=False"
                )


class PrefixCache:
    """The key-value cache of a ``PrefixTree``.

    The prompt's keys and values are stored once per sentence, those of a prefix's last token once per prefix. Memory:
    that of a cache whose length is the number of prefixes.

    Args:
        prompts: the model's cache after the prompts.

    Raises:
        ValueError: a kind of cache layer that prefixes cannot share.
    """

    def __init__(self, prompts: Cache) -> None:
        check_shareable(prompts)
        self._cross = prompts.cross_attention_cache if isinstance(prompts, EncoderDecoderCache) else None
        self._prompts = prompts.self_attention_cache if isinstance(prompts, EncoderDecoderCache) else prompts
        self._keys = [GrowingRows() for _ in self._prompts.layers]
        self._values = [GrowingRows() for _ in self._prompts.layers]

    def gather(self, sentences: Tensor, paths: Tensor) -> Cache:
        """The cache of some prefixes, one row per prefix.

        Args:
            sentences: (n,) indices of their sentences.
            paths: (n, length) their paths in the ``PrefixTree``.
        """
        cache = _with_layers(self._prompts, [self._layer(i, sentences, paths) for i in range(len(self._keys))])
        if self._cross is None:
            return cache
        cross = [_selected(layer, sentences) for layer in self._cross.layers]
        return EncoderDecoderCache(cache, _with_layers(self._cross, cross))

    def append(self, cache: Cache) -> None:
        """Store the last position of each row of ``cache``, one new prefix per row."""
        cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        for layer, keys, values in zip(cache.layers, self._keys, self._values):
            if _holds_states(layer):
                keys.append(layer.keys[:, :, -1])
                values.append(layer.values[:, :, -1])

    def _layer(self, i: int, sentences: Tensor, paths: Tensor) -> DynamicLayer:
        layer = _selected(self._prompts.layers[i], sentences)
        length = paths.shape[1]
        if not length or not _holds_states(layer):
            return layer
        paths = paths.to(layer.keys.device)
        layer.keys = torch.cat([layer.keys, self._keys[i][paths].transpose(1, 2)], dim=2)
        layer.values = torch.cat([layer.values, self._values[i][paths].transpose(1, 2)], dim=2)
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length += length
            layer.keys = layer.keys[:, :, -layer.sliding_window + 1 :]
            layer.values = layer.values[:, :, -layer.sliding_window + 1 :]
        return layer


def _holds_states(layer: DynamicLayer | DummyLayer) -> bool:
    return isinstance(layer, DynamicLayer) and layer.is_initialized


def _with_layers(cache: Cache, layers: list) -> Cache:
    cache = copy.copy(cache)
    cache.layers = layers
    return cache


def _selected(layer: DynamicLayer, sentences: Tensor) -> DynamicLayer:
    layer = copy.copy(layer)
    if _holds_states(layer):
        sentences = sentences.to(layer.keys.device)
        layer.keys, layer.values = layer.keys[sentences], layer.values[sentences]
    return layer
