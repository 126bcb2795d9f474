"""Few cases in which any two levels of different factors meet: most faults need no more than two to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

Level = tuple[str, str]


def pairs(case: Iterable[Level]) -> set[frozenset[Level]]:
    """All pairs of the levels of a case, or of a part of one."""
    return {frozenset(pair) for pair in combinations(case, 2)}


def pairwise(factors: Mapping[str, Iterable[str]]) -> list[dict[str, str]]:
    """Cases, each with one level of every factor, in which any two levels of different factors meet at least once.

    Greedy: a case begins with two levels that have not met; each further factor then takes the level that brings most
    new meetings, the one used least among equals.

    >>> pairwise({"a": "12", "b": "34"})
    [{'a': '1', 'b': '3'}, {'a': '1', 'b': '4'}, {'a': '2', 'b': '3'}, {'a': '2', 'b': '4'}]
    """
    levels = {factor: [(factor, level) for level in of] for factor, of in factors.items()}
    wanted = [frozenset((a, b)) for f, g in combinations(levels, 2) for a in levels[f] for b in levels[g]]
    missing, used, cases = dict.fromkeys(wanted), dict.fromkeys((x for of in levels.values() for x in of), 0), []
    while missing:
        case = dict(sorted(next(iter(missing))))
        for factor, of in levels.items():
            if factor not in case:

                def gain(level: Level, case: dict[str, str] = case) -> tuple[int, int]:
                    return sum(frozenset((level, other)) in missing for other in case.items()), -used[level]

                case[factor] = max(of, key=gain)[1]
        case = {factor: case[factor] for factor in levels}
        for level in case.items():
            used[level] += 1
        for pair in pairs(case.items()):
            missing.pop(pair, None)
        cases.append(case)
    return cases
