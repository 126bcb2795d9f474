"""The open prefixes of a search, and a record of those it left unexpanded."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ._constraints import rank_in_group


@dataclass(frozen=True)
class Prefixes:
    """Prefixes of one length, not yet expanded.

    Attributes:
        sentence: (n,) index of the sentence.
        log_mass: (n,) log-probability in nats, float64.
        parent: (n,) number of the expanded prefix that it is one token longer than.
        token: (n,) last token.
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


class LeftPrefixes:
    """The prefixes that were left unexpanded: their mass, their likeliest, and why they were left.

    Attributes:
        mass: (B,) total probability, float64.
        log_bound: (B,) log-probability of the likeliest, by reason: ``"pruned"`` or a budget.
    """

    def __init__(self, num_sentences: int) -> None:
        self.mass = torch.zeros(num_sentences, dtype=torch.float64, device="cpu")
        self.log_bound: dict[str, Tensor] = {}

    def add(self, reason: str, prefixes: Prefixes) -> None:
        """Record that ``prefixes`` are left."""
        self.mass.index_add_(0, prefixes.sentence, prefixes.log_mass.exp())
        bound = self.log_bound.setdefault(reason, torch.full_like(self.mass, -math.inf))
        bound.scatter_reduce_(0, prefixes.sentence, prefixes.log_mass, "amax")


class Frontier:
    """Open prefixes by length, at most ``max_open`` per sentence: beyond that the least likely are left.

    Args:
        num_sentences: number of sentences, B.
        max_length: prefixes of this many tokens are left, not opened.
        max_open: most open prefixes per sentence.

    Attributes:
        num_open: (B,) number of open prefixes.
        left: the prefixes that were left.
    """

    def __init__(self, num_sentences: int, max_length: int, max_open: int) -> None:
        sentences = torch.arange(num_sentences, device="cpu")
        root = Prefixes(sentences, torch.zeros(num_sentences, dtype=torch.float64, device="cpu"), sentences, sentences)
        self._levels = [root, *(root[:0] for _ in range(max_length - 1))]
        self._max_open = max_open
        self.num_open = torch.ones(num_sentences, dtype=torch.long, device="cpu")
        self.left = LeftPrefixes(num_sentences)

    def take(self, length: int, count: int) -> Prefixes:
        """Take out the ``count`` likeliest prefixes of ``length`` tokens of each sentence."""
        level = self._levels[length]
        taken = among_likeliest(level, count)
        self._replace(length, level[~taken])
        return level[taken]

    def push(self, length: int, prefixes: Prefixes) -> None:
        """Open ``prefixes`` of ``length`` tokens."""
        if length == len(self._levels):
            self.left.add("max_new_tokens", prefixes)
            return
        self._replace(length, self._levels[length] + prefixes)
        if (self.num_open > self._max_open).any():
            kept = among_likeliest(sum(self._levels[1:], self._levels[0]), self._max_open)
            for length, mask in enumerate(kept.split([len(level) for level in self._levels])):
                self._keep(length, mask, "max_open")

    def prune(self, length: int, to_beat: Tensor, least: float) -> None:
        """Leave the prefixes of ``length`` tokens that are no likelier than ``to_beat`` or less likely than ``least``.

        Args:
            length: number of tokens.
            to_beat: (B,) log-probability.
            least: log-probability, for all sentences.
        """
        level = self._levels[length]
        self._keep(length, (level.log_mass > to_beat[level.sentence]) & (level.log_mass >= least), "pruned")

    def leave(self, sentences: Tensor, reason: str) -> None:
        """Leave all open prefixes of some sentences, given as a bool mask (B,)."""
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


def among_likeliest(prefixes: Prefixes, count: int) -> Tensor:
    """Mask (n,) of the ``count`` likeliest prefixes of each sentence: exactly ``count`` on ties."""
    if len(prefixes) <= count:
        return torch.ones(len(prefixes), dtype=torch.bool, device="cpu")
    order = prefixes.log_mass.argsort(descending=True, stable=True)
    ranks = rank_in_group(prefixes.sentence[order])
    return torch.zeros(len(order), dtype=torch.bool, device="cpu").scatter_(0, order, ranks < count)
