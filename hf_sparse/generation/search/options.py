"""What a search through strings is to find, and what it may spend."""

from __future__ import annotations

from dataclasses import dataclass

from ...functional.arguments import check_count, check_number


@dataclass(frozen=True)
class SearchOptions:
    """Arguments of ``exact_search``, which explains them.

    Raises:
        TypeError: one that is no number.
        ValueError: one out of range.
    """

    num_hypotheses: int
    min_probability: float
    width: int
    max_open: int
    max_expanded: int
    max_seconds: float | None
    progress: bool

    def __post_init__(self) -> None:
        for name in ("num_hypotheses", "width", "max_open", "max_expanded"):
            check_count(name, getattr(self, name))
        check_number("min_probability", self.min_probability, "in [0, 1]", lambda p: 0 <= p <= 1)
        if self.max_seconds is not None:
            check_number("max_seconds", self.max_seconds, "above 0, or None", lambda seconds: seconds > 0)
