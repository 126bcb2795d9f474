"""The result of a search for one sentence: its hypotheses, and the proof that they are the likeliest."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """A string that ended.

    Attributes:
        tokens: token ids, with the end token, without prompt or start token.
        log_probability: under the model, in nats; no length penalty.
    """

    tokens: list[int]
    log_probability: float

    @property
    def probability(self) -> float:
        """Probability under the model."""
        return math.exp(self.log_probability)


@dataclass(frozen=True)
class SearchResult:
    """The hypotheses of one sentence, and the share of the distribution that the search did not see.

    Every string not seen continues a prefix that the search left: pruned, because no continuation could become one of
    the hypotheses, or dropped because a budget ended. A string is never likelier than its prefix, so the likeliest
    prefix left bounds all strings not seen, and together they have ``left_mass``.

    Attributes:
        hypotheses: the likeliest strings seen, at most as many as requested, likeliest first.
        finished_mass: total probability of all strings seen, hypotheses or not.
        left_mass: total probability of the prefixes left. Both masses sum to 1 up to rounding, unless logits
            processors took some away.
        log_bound: log-probability of the likeliest prefix left, in nats; ``-inf`` if none was left.
        num_expanded: number of prefixes whose continuations were computed.
        ended_by: None if the search ended because no string left can be among the hypotheses; else the budget that
            ended it, to be raised: ``"max_new_tokens"``, ``"max_open"``, ``"max_expanded"``, ``"max_seconds"`` or
            ``"num_beams"``.
        num_passes: number of forward passes of the model, for all sentences of the batch together; 0 for a proof from
            scores that were there already.

    >>> best = Hypothesis([5, 2], math.log(0.5))
    >>> found = SearchResult([best], finished_mass=0.5, left_mass=0.5, log_bound=math.log(0.25), num_expanded=3)
    >>> found.certificate, found.exhausted, found.outweighs, found.bounded, found.gap
    ('mass', False, True, True, 0.0)
    """

    hypotheses: list[Hypothesis]
    finished_mass: float
    left_mass: float
    log_bound: float
    num_expanded: int
    ended_by: str | None = None
    num_passes: int = 0

    @property
    def best(self) -> Hypothesis | None:
        """The likeliest string seen, or None if no string ended within the budgets."""
        return self.hypotheses[0] if self.hypotheses else None

    @property
    def exhausted(self) -> bool:
        """Every string of nonzero probability was seen (Peters et al. 2019, Section 4.1)."""
        return self.log_bound == -math.inf

    @property
    def outweighs(self) -> bool:
        """The best hypothesis is at least as likely as all strings not seen together.

        Not known, and False, where probabilities are too small for a float.
        """
        most = max(self.left_mass, sys.float_info.min)
        return self.exhausted or (self.best is not None and self.best.probability >= most)

    @property
    def bounded(self) -> bool:
        """No string not seen can be likelier than the best hypothesis."""
        return self.outweighs or self.num_proved > 0

    @property
    def certificate(self) -> str | None:
        """The strongest proof that the best hypothesis is the likeliest string.

        ``"exhaustion"`` implies ``"mass"``, which implies ``"bound"``; None where there is no proof.
        """
        if self.exhausted:
            return "exhaustion"
        if self.outweighs:
            return "mass"
        return "bound" if self.bounded else None

    @property
    def num_proved(self) -> int:
        """Number of hypotheses, from the first on, that are proved to be the likeliest strings in this order."""
        return sum(hypothesis.log_probability >= self.log_bound for hypothesis in self.hypotheses)

    @property
    def gap(self) -> float:
        """Largest log-probability by which a string not seen could exceed the best hypothesis, in nats.

        0 where there is a certificate, infinite where nothing was found.
        """
        if self.bounded:
            return 0.0
        return math.inf if self.best is None else self.log_bound - self.best.log_probability
