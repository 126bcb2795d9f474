"""The sweeps of an exact search: beam search through all lengths, repeated over the prefixes still open."""

from __future__ import annotations

import bisect
import math
import time

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ._frontier import Frontier, Prefixes
from ._lattice import Lattice
from .options import SearchOptions
from .result import Hypothesis, SearchResult


class Sweeps:
    """The state of a search: the open prefixes, and the strings found.

    Args:
        lattice: the strings of all sentences.
        ends: (E,) the tokens that end a string.
        max_new_tokens: of the longest string.
        options: what to find, and what to spend.
    """

    def __init__(self, lattice: Lattice, ends: Tensor, max_new_tokens: int, options: SearchOptions) -> None:
        self.lattice, self.ends, self.max_new_tokens, self.options = lattice, ends, max_new_tokens, options
        self.least = math.log(options.min_probability) if options.min_probability else -math.inf
        num_sentences = lattice.num_sentences
        self.frontier = Frontier(num_sentences, max_new_tokens, options.max_open)
        self.found: list[list[tuple[float, list[int]]]] = [[] for _ in range(num_sentences)]  # -log p, tokens
        self.finished_mass = torch.zeros(num_sentences, dtype=torch.float64, device="cpu")
        self.num_expanded = torch.zeros(num_sentences, dtype=torch.long, device="cpu")

    @property
    def to_beat(self) -> Tensor:
        """The log-probability (B,) that a string must exceed to become one of the hypotheses."""
        full = [-found[-1][0] if len(found) == self.options.num_hypotheses else -math.inf for found in self.found]
        return torch.tensor(full, dtype=torch.float64, device="cpu")

    def run(self) -> list[SearchResult]:
        """Sweep until no prefix is open.

        Returns:
            One result per sentence.
        """
        seconds = self.options.max_seconds
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        num_open = self.frontier.num_open
        with tqdm(total=len(num_open), desc="exact search", unit="sentence", disable=not self.options.progress) as bar:
            while num_open.any():
                self.sweep(deadline)
                bar.update(int((num_open == 0).sum()) - bar.n)
                bar.set_postfix(expanded=int(self.num_expanded.sum()), open=int(num_open.sum()))
        return [self.result(i) for i in range(len(num_open))]

    def sweep(self, deadline: float) -> None:
        """Expand the likeliest open prefixes of every length, short ones first; ``deadline`` is a monotonic time."""
        for length in range(self.max_new_tokens):
            self.frontier.prune(length, self.to_beat, self.least)
            prefixes = self.frontier.take(length, self.options.width)
            if len(prefixes):
                self.expand(length, prefixes)
                spent = self.num_expanded >= self.options.max_expanded
                if spent.any():
                    self.frontier.leave(spent, "max_expanded")
                if time.monotonic() >= deadline:
                    self.frontier.leave(torch.ones_like(spent), "max_seconds")
        for length in range(self.max_new_tokens):
            self.frontier.prune(length, self.to_beat, self.least)

    def expand(self, length: int, prefixes: Prefixes) -> None:
        """Continue ``prefixes`` of ``length`` tokens; keep the strings that ended, open the others."""
        self.num_expanded += torch.bincount(prefixes.sentence, minlength=len(self.num_expanded))
        if length == 0:
            nodes, log_p = prefixes.parent, self.lattice.start()
        else:
            nodes, log_p = self.lattice.expand(length, prefixes.sentence, prefixes.parent, prefixes.token)
        row, token = (log_p > -math.inf).nonzero(as_tuple=True)
        log_p, row, token = log_p[row, token].cpu(), row.cpu(), token.cpu()
        longer = Prefixes(prefixes.sentence[row], prefixes.log_mass[row] + log_p, nodes[row], token)
        ended = torch.isin(token, self.ends)
        self.finish(length, longer[ended])
        self.frontier.push(length + 1, longer[~ended])

    def finish(self, length: int, ended: Prefixes) -> None:
        """Add strings that ended, of ``length`` tokens before the end, if they are among the likeliest."""
        self.finished_mass.index_add_(0, ended.sentence, ended.log_mass.exp())
        ended = ended[(ended.log_mass > self.to_beat[ended.sentence]) & (ended.log_mass >= self.least)]
        strings = self.lattice.strings(ended.parent, length)
        for i, log_mass, string, end in zip(ended.sentence.tolist(), ended.log_mass.tolist(), strings, ended.token):
            bisect.insort(self.found[i], (-log_mass, [*string, int(end)]))
            del self.found[i][self.options.num_hypotheses :]

    def result(self, i: int) -> SearchResult:
        """The hypotheses of sentence ``i`` and their proof."""
        left = self.frontier.left
        bounds = {reason: float(bound[i]) for reason, bound in left.log_bound.items()}
        reason = max(bounds, key=bounds.__getitem__, default=None)
        log_bound = -math.inf if reason is None else bounds[reason]
        proved = reason in (None, "pruned") or log_bound <= self.to_beat[i] or log_bound < self.least
        return SearchResult(
            hypotheses=[Hypothesis(tokens, -negative) for negative, tokens in self.found[i]],
            finished_mass=float(self.finished_mass[i]),
            left_mass=float(left.mass[i]),
            log_bound=log_bound,
            num_expanded=int(self.num_expanded[i]),
            ended_by=None if proved else reason,
            num_passes=self.lattice.num_passes,
        )
