"""The prefixes a search has still to expand, and a record of those it left."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prefixes:
    """Prefixes of one length, not yet expanded.

    Attributes:
        sentence: which sentence each belongs to (n,).
        log_mass: logarithm of its probability (n,), float64.
        parent: number of the expanded prefix it is one token longer than (n,).
        token: its last token (n,).
    """

    sentence: Tensor
    log_mass: Tensor
    parent: Tensor
    token: Tensor

    def __len__(self) -> int:
        return len(self.sentence)

    def __getitem__(self, index: Tensor | slice) -> Prefixes:
        return Prefixes(*(getattr(self, field.name)[index] for field in fields(self)))

    def __add__(self, other: Prefixes) -> Prefixes:
        return Prefixes(*(torch.cat([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)))


class Left:
    """How much probability, and how likely a string, was left unseen in each sentence, and why.

    Attributes:
        mass: total probability of the prefixes left (B,), float64.
        log_bound: log-probability of the likeliest (B,) by the reason for leaving it: ``"pruned"`` or a budget.
    """

    def __init__(self, num_sentences: int) -> None:
        self.mass = torch.zeros(num_sentences, dtype=torch.float64)
        self.log_bound: dict[str, Tensor] = {}

    def add(self, reason: str, prefixes: Prefixes) -> None:
        """Record that ``prefixes`` are left."""
        self.mass.index_add_(0, prefixes.sentence, prefixes.log_mass.exp())
        bound = self.log_bound.setdefault(reason, torch.full_like(self.mass, -math.inf))
        bound.scatter_reduce_(0, prefixes.sentence, prefixes.log_mass, "amax")


class Frontier:
    """Open prefixes by length, at most ``max_open`` a sentence: beyond that the least likely are left.

    Args:
        num_sentences: number of sentences.
        max_length: prefixes of this length are left, not opened.
        max_open: most open prefixes a sentence.
    """

    def __init__(self, num_sentences: int, max_length: int, max_open: int) -> None:
        sentences = torch.arange(num_sentences)
        root = Prefixes(sentences, torch.zeros(num_sentences, dtype=torch.float64), sentences, sentences)
        self._levels = [root, *(root[:0] for _ in range(max_length - 1))]
        self._max_open = max_open
        self.num_open = torch.ones(num_sentences, dtype=torch.long)
        self.left = Left(num_sentences)

    def take(self, length: int, count: int) -> Prefixes:
        """Take out the ``count`` likeliest prefixes of ``length`` tokens of each sentence."""
        level = self._levels[length]
        chosen = likeliest(level, count)
        self._replace(length, level[~chosen])
        return level[chosen]

    def push(self, length: int, prefixes: Prefixes) -> None:
        """Open ``prefixes`` of ``length`` tokens."""
        if length == len(self._levels):
            self.left.add("max_new_tokens", prefixes)
            return
        self._replace(length, self._levels[length] + prefixes)
        if (self.num_open > self._max_open).any():
            kept = likeliest(sum(self._levels[1:], self._levels[0]), self._max_open)
            for length, mask in enumerate(kept.split([len(level) for level in self._levels])):
                self._keep(length, mask, "max_open")

    def prune(self, length: int, beaten: Tensor, least: float) -> None:
        """Leave the prefixes of ``length`` tokens that are no likelier than ``beaten`` or less likely than ``least``.

        Args:
            length: number of tokens.
            beaten: a log-probability for each sentence (B,).
            least: a log-probability.
        """
        level = self._levels[length]
        self._keep(length, (level.log_mass > beaten[level.sentence]) & (level.log_mass >= least), "pruned")

    def leave(self, sentences: Tensor, reason: str) -> None:
        """Leave all open prefixes of the sentences where ``sentences`` (B,) is true."""
        for length, level in enumerate(self._levels):
            self._keep(length, ~sentences[level.sentence], reason)

    def _keep(self, length: int, kept: Tensor, reason: str) -> None:
        if not kept.all():
            level = self._levels[length]
            self.left.add(reason, level[~kept])
            self._replace(length, level[kept])

    def _replace(self, length: int, prefixes: Prefixes) -> None:
        num_sentences = len(self.num_open)
        self.num_open -= torch.bincount(self._levels[length].sentence, minlength=num_sentences)
        self.num_open += torch.bincount(prefixes.sentence, minlength=num_sentences)
        self._levels[length] = prefixes


def likeliest(prefixes: Prefixes, count: int) -> Tensor:
    """Which prefixes are among the ``count`` likeliest of their sentence: bool (n,), exactly ``count`` on ties."""
    if len(prefixes) <= count:
        return torch.ones(len(prefixes), dtype=torch.bool)
    order = prefixes.log_mass.argsort(descending=True, stable=True)
    order = order[prefixes.sentence[order].argsort(stable=True)]
    sentence = prefixes.sentence[order]
    rank = torch.arange(len(order)) - torch.searchsorted(sentence, sentence)
    return torch.zeros(len(order), dtype=torch.bool).scatter_(0, order, rank < count)
