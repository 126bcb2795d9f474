"""Interleaved timing: every round times each candidate once, and ratios are taken within a round."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ._case import Case, Row

STAT = Path("/proc/stat")
# A round in which other processes used more of the machine than this is repeated while there is time, and reported.
DISTURBED = 0.1
MIN_ROUNDS = 2
# The share of the machine that others had meanwhile, and seconds by candidate and part.
Round = tuple[float, dict[tuple[str, str], float]]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def _machine_seconds() -> float:
    """CPU seconds spent by the whole machine so far, or those of this process where the system does not say."""
    if not STAT.exists():
        return sum(os.times()[:4])
    user, nice, system = map(int, STAT.read_text().split("\n", 1)[0].split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def measure(case: Case, clock: str = "wall") -> list[Row]:
    """Time the case's candidates; one row for each.

    The ``"cpu"`` clock counts this process's CPU time on one thread: less of what users feel, but it holds on a
    machine that others are using. With more threads it would count the waiting of one for another.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(case.threads if clock == "wall" else 1)
    try:
        calls = _calls(case)
        for call in calls.values():
            call()
        rounds: list[Round] = []
        end = time.perf_counter() + case.seconds
        while len(rounds) < MIN_ROUNDS or (
            sum(clock == "cpu" or share <= DISTURBED for share, _ in rounds) < case.rounds
            and time.perf_counter() < end
        ):
            rounds.append(_round(calls, CLOCKS[clock]))
    finally:
        torch.set_num_threads(before)
    kept = sorted(rounds, key=lambda r: r[0])[: case.rounds]
    return [_row(case, *name, kept) for name in calls]


def _calls(case: Case) -> dict[tuple[str, str], Callable[[], object]]:
    """What is timed, by candidate and part; the whole is the part without a name, and comes first."""
    calls = {}
    for name, whole in case.candidates.items():
        calls[name, ""] = whole
        calls |= {(name, part): call for part, call in case.parts.get(name, {}).items()}
    return calls


def _round(calls: Mapping[tuple[str, str], Callable[[], object]], now: Callable[[], float]) -> Round:
    """Time every call once."""
    own, machine, start = sum(os.times()[:4]), _machine_seconds(), time.perf_counter()
    seconds = {}
    for name, call in calls.items():
        begin = now()
        call()
        seconds[name] = now() - begin
    wall = time.perf_counter() - start
    others = (_machine_seconds() - machine) - (sum(os.times()[:4]) - own)
    return others / (wall * (os.cpu_count() or 1)), seconds


def _row(case: Case, name: str, part: str, rounds: list[Round]) -> Row:
    ratios = [seconds[name, part] / seconds[case.baseline, ""] for _, seconds in rounds]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Row(
        case=case.title,
        candidate=name,
        value=1e3 * statistics.median(seconds[name, part] for _, seconds in rounds),
        unit="ms",
        baseline=case.baseline,
        ratio=middle,
        quartiles=(low, high),
        target=None if part else case.targets.get(name),
        rounds=len(rounds),
        disturbed=sum(share > DISTURBED for share, _ in rounds),
        part=part,
    )
