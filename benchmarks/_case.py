"""What one benchmark is: candidates that do the same job, one of them the measure of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """Candidates timed in turn, round after round.

    Attributes:
        title: what is computed, on which shape and inputs.
        baseline: the candidate the others are divided by.
        candidates: by name, what to time: a call without arguments.
        targets: by name, the ratio to the baseline a candidate should not exceed.
        parts: by candidate and name, pieces of what it does, timed alone in the same rounds: where its time goes.
        rounds: how often each candidate is timed, while there is time.
        seconds: how long the rounds may take; two are timed however long.
        threads: intra-op threads of torch.
    """

    title: str
    baseline: str
    candidates: Mapping[str, Callable[[], object]]
    targets: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Callable[[], object]]] = field(default_factory=dict)
    rounds: int = 11
    seconds: float = 15.0
    threads: int = 2


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        case: title of the case.
        candidate: name of the candidate.
        value: median time in ms, or memory in MB.
        unit: ``"ms"`` or ``"MB"``.
        baseline: what the ratio is to.
        ratio: median of the per-round ratios.
        quartiles: first and third quartile of those.
        target: what the ratio should not exceed, or None.
        rounds: number of rounds behind the ratio.
        disturbed: how many of them other processes took more than a tenth of the machine in.
        part: name of the piece of the candidate that was timed alone; empty for all of it.
    """

    case: str
    candidate: str
    value: float
    unit: str
    baseline: str
    ratio: float
    quartiles: tuple[float, float]
    target: float | None
    rounds: int
    disturbed: int
    part: str = ""

    @property
    def verdict(self) -> str:
        """``"met"``, ``"MISSED"``, or nothing where there is no target."""
        if self.target is None:
            return ""
        return "met" if self.ratio <= self.target else "MISSED"
