"""The prefixes a search has expanded, with their keys and values: what several share is stored once."""

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


class Rows:
    """A tensor that grows along its first axis, in amortized linear time."""

    def __init__(self) -> None:
        self._room: Tensor | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Tensor) -> Tensor:
        assert self._room is not None
        return self._room[index]

    def append(self, rows: Tensor) -> None:
        """Add ``rows`` (n, ...) at the end."""
        end = self._length + len(rows)
        if self._room is None or end > len(self._room):
            room = rows.new_empty(max(end, 2 * self._length), *rows.shape[1:])
            if self._room is not None:
                room[: self._length] = self._room[: self._length]
            self._room = room
        self._room[self._length : end] = rows
        self._length = end


class PrefixTree:
    """Every expanded prefix but the empty one, under a number: its last token and the way to it from the root."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._tokens = Rows()
        self._paths = Rows()

    def add(self, parents: Tensor, tokens: Tensor, length: int) -> Tensor:
        """Number new prefixes of ``length`` tokens (n,), each one token longer than its parent (n,)."""
        nodes = torch.arange(len(tokens)) + len(self._tokens)
        paths = torch.full((len(tokens), self._max_length), -1)
        paths[:, : length - 1] = self.path(parents, length - 1)
        paths[:, length - 1] = nodes
        self._tokens.append(tokens)
        self._paths.append(paths)
        return nodes

    def path(self, nodes: Tensor, length: int) -> Tensor:
        """The prefixes (n, length) on the way to prefixes (n,) of ``length`` tokens, themselves last."""
        return self._paths[nodes][:, :length] if length else torch.empty(len(nodes), 0, dtype=torch.long)

    def strings(self, nodes: Tensor, length: int) -> Tensor:
        """The tokens (n, length) of prefixes (n,) of ``length`` tokens."""
        return self._tokens[self.path(nodes, length)] if length else self.path(nodes, 0)


class PrefixCache:
    """The key-value cache of a ``PrefixTree``.

    The prompt's keys and values are stored once a sentence, those of a prefix's last token once a prefix. Memory:
    that of a cache whose length is the number of prefixes.
    """

    def __init__(self, prompts: Cache) -> None:
        self._cross = prompts.cross_attention_cache if isinstance(prompts, EncoderDecoderCache) else None
        self._prompts = prompts.self_attention_cache if isinstance(prompts, EncoderDecoderCache) else prompts
        for layer in [*self._prompts.layers, *(self._cross.layers if self._cross else ())]:
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer):
                raise ValueError(
                    f"exact search cannot share a cache with layers of type {type(layer).__name__} between prefixes; "
                    "pass use_cache=False"
                )
        self._keys = [Rows() for _ in self._prompts.layers]
        self._values = [Rows() for _ in self._prompts.layers]

    def gather(self, sentences: Tensor, paths: Tensor) -> Cache:
        """The cache, of n rows, of the prompts of ``sentences`` (n,) and the prefixes on ``paths`` (n, length)."""
        cache = _with_layers(self._prompts, [self._layer(i, sentences, paths) for i in range(len(self._keys))])
        if self._cross is None:
            return cache
        cross = [_selected(layer, sentences) for layer in self._cross.layers]
        return EncoderDecoderCache(cache, _with_layers(self._cross, cross))

    def append(self, cache: Cache) -> None:
        """Store the last position of each row of ``cache``, as many new prefixes."""
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
