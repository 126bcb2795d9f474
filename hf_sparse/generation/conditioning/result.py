"""The outputs of a model that are in a language: their probability, and their distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from ...functional.arguments import check_count, check_flag
from ..labels import percent, token_labels
from ..search.result import Hypothesis, SearchResult

SHOWN = 5  # members in a repr
_LEAST = 1e-290  # probabilities below, and sums of them, lose digits


class Interval(NamedTuple):
    """Bounds of a probability; equal where it is known.

    >>> Interval(0.25, 0.5), Interval(0.25, 0.25)
    ([25.00%, 50.00%], 25.00%)
    """

    low: float
    high: float

    def __repr__(self) -> str:
        return percent(self.low) if self.low == self.high else f"[{percent(self.low)}, {percent(self.high)}]"


@dataclass(frozen=True, repr=False)
class Conditioned:
    """The distribution of one input's outputs, given that they are in a language L.

    Attributes:
        search: the members that were found, likeliest first, with their probabilities among all outputs, and the
            prefixes that a budget left. Of the latter the search counts only those with which a member may begin.

    >>> members = [Hypothesis([5, 2], math.log(0.3)), Hypothesis([6, 2], math.log(0.1))]
    >>> found = Conditioned(SearchResult(members, 0.4, 0.1, math.log(0.1), num_expanded=3, ended_by="max_expanded"))
    >>> found
    Conditioned(p(L) in [40.00%, 50.00%], not complete: raise max_expanded; members given L:
      [60.00%, 75.00%]  5 2
      [20.00%, 25.00%]  6 2)
    >>> found.complete, found.impossible, found.best.tokens, found.conditional([7, 2])
    (False, False, [5, 2], [0.00%, 20.00%])
    """

    search: SearchResult

    @property
    def members(self) -> list[Hypothesis]:
        """The outputs in L that were found, likeliest first; their probabilities are those among all outputs."""
        return self.search.hypotheses

    @property
    def complete(self) -> bool:
        """Whether every member of nonzero probability was found, so that all probabilities are known."""
        return self.search.exhausted

    @property
    def probability(self) -> Interval:
        """Bounds of p(L): the probability found, and that with all prefixes left."""
        found = min(1.0, self.search.finished_mass)
        return Interval(found, min(1.0, found + self.search.left_mass))

    @property
    def impossible(self) -> bool:
        """Whether no output in L has nonzero probability: a proof, for no prefix was left."""
        return self.complete and not self.members

    @property
    def best(self) -> Hypothesis | None:
        """The likeliest member found; the likeliest of all if ``proved``."""
        return self.search.best

    @property
    def proved(self) -> bool:
        """Whether no member that was not found can be likelier than ``best``."""
        return self.search.bounded

    def conditional(self, tokens: Sequence[int]) -> Interval:
        """Bounds of p(output | L).

        Args:
            tokens: ids of the output, with its end token.

        Raises:
            ValueError: L is impossible, so that nothing is given.
        """
        known = [member.log_probability for member in self.members if member.tokens == list(tokens)]
        if known:
            return self._given(known[0], -math.inf)
        return self._given(-math.inf, min(self.search.log_bound, self._log_left()))

    def texts(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Interval]:
        """Bounds of p(text | L) for the text of each member, likeliest first, over all of its tokenizations in L.

        Args:
            tokenizer: the model's.

        Raises:
            ValueError: L is impossible.
        """
        self._check_possible()
        log_masses: dict[str, float] = {}
        for member in self.members:
            text = tokenizer.decode(member.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            log_masses[text] = _log_sum(log_masses.get(text, -math.inf), member.log_probability)
        ordered = sorted(log_masses.items(), key=lambda item: -item[1])
        return {text: self._given(log_mass, self._log_left()) for text, log_mass in ordered}

    def sample(
        self, num_samples: int = 1, generator: torch.Generator | None = None, *, approximate: bool = False
    ) -> list[list[int]]:
        """Independent draws from p(output | L).

        Args:
            num_samples: how many.
            generator: of random numbers, on the CPU; None for torch's own.
            approximate: whether to draw from the members found where others may be missing. The distance in total
                variation is then at most the share that the prefixes left have in the upper bound of p(L).

        Returns:
            Token ids of each draw, with the end token.

        Raises:
            TypeError: a number of draws that is none, or ``approximate`` that is no flag.
            ValueError: no member, or not all of them and not ``approximate``.
        """
        check_count("num_samples", num_samples)
        check_flag("approximate", approximate)
        if not self.members:
            reason = "is impossible" if self.complete else f"has no member found yet: raise {self.search.ended_by}"
            raise ValueError(f"nothing can be drawn: the language {reason}")
        if not self.complete and not approximate:
            share = math.exp(self._log_left() - _log_sum(self._log_found(), self._log_left()))
            raise ValueError(
                f"not all members are known: raise {self.search.ended_by}, or pass approximate=True for draws whose "
                f"distribution is up to {percent(share)} away in total variation"
            )
        logs = [member.log_probability for member in self.members]
        weights = torch.tensor(logs, dtype=torch.float64, device="cpu").softmax(-1)
        drawn = torch.multinomial(weights, num_samples, replacement=True, generator=generator)
        return [list(self.members[i].tokens) for i in drawn.tolist()]

    def text(self, tokenizer: PreTrainedTokenizerBase | None = None, shown: int = SHOWN) -> str:
        """The result for a reader.

        Args:
            tokenizer: writes tokens as text; None for their ids.
            shown: most members to show.
        """
        if self.impossible:
            return "p(L) = 0, proved: no output in L has nonzero probability"
        how = "complete" if self.complete else f"not complete: raise {self.search.ended_by}"
        sign = "=" if self.complete else "in"
        lines = [f"p(L) {sign} {self.probability!r}, {how}; members given L:"]
        for member in self.members[:shown]:
            labels = " ".join(token_labels(member.tokens, tokenizer))
            lines.append(f"  {self.conditional(member.tokens)!r}  {labels}")
        more = len(self.members) - shown
        return "\n".join([*lines, f"  and {more} more"] if more > 0 else lines)

    def __repr__(self) -> str:
        return f"Conditioned({self.text()})"

    # In logarithms: the probabilities of long outputs may be too small for a float, and their ratios are not.

    def _given(self, log_known: float, log_open: float) -> Interval:
        """Bounds of p(event | L) for an event in L, of which members are known and more may be among what was left.

        What is open and outside of the event lowers the share, what is open and inside raises it.

        Args:
            log_known: log-probability of the members found that are in the event.
            log_open: of the prefixes left that may begin others, at most.
        """
        self._check_possible()
        found = self._log_found()
        least = log_known - _log_sum(found, self._log_left())
        most = _log_sum(log_known, log_open) - _log_sum(found, log_open)
        return Interval(math.exp(min(0.0, least)), math.exp(min(0.0, most)))

    def _check_possible(self) -> None:
        if self.impossible:
            raise ValueError("the language is impossible: there is no distribution of outputs in it")

    def _log_found(self) -> float:
        """The log-probability of all members found."""
        if self.search.finished_mass > _LEAST:
            return math.log(self.search.finished_mass)
        logs = [member.log_probability for member in self.members]
        return float(torch.tensor([-math.inf, *logs], dtype=torch.float64, device="cpu").logsumexp(0))

    def _log_left(self) -> float:
        """The log-probability of all prefixes left, at most."""
        return -math.inf if self.complete else math.log(max(self.search.left_mass, _LEAST))


def _log_sum(one: float, other: float) -> float:
    """``log(exp(one) + exp(other))``."""
    low, high = sorted((one, other))
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
