"""``python -m benchmarks --all``, or ``[--quick] [--only losses] [--allocator cold] [--clock cpu] [--out FILE]``."""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

from . import (
    attention,
    cache,
    constrained,
    decoding,
    density,
    every,
    growth,
    head,
    learned,
    linear,
    losses,
    maps,
    memory,
    models,
    options,
    powers,
    sizes,
)
from ._case import Row
from ._machine import WARM_ALLOCATOR, is_warm, machine
from ._table import heading, line, write
from ._timing import measure

TOGETHER = {
    "losses": losses,
    "maps": maps,
    "attention": attention,
    "linear": linear,
    "constrained": constrained,
    "growth": growth,
    "decoding": decoding,
}
# Sections with a run and a result file of their own: as long as all the others, or with packages of their own.
ALONE = {
    "density": density,
    "sizes": sizes,
    "options": options,
    "every": every,
    "powers": powers,
    "learned": learned,
    "head": head,
    "cache": cache,
    "models": models,
}
ALLOCATORS = {"models": "cold"}  # whole models are measured as users have them; the others are warm
SECTIONS = TOGETHER | ALONE
RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny case of each kind, to see that everything runs")
    parser.add_argument("--all", action="store_true", help="every section, each with its own result file")
    parser.add_argument("--only", choices=[*SECTIONS, "memory"], help="one section")
    parser.add_argument(
        "--allocator", choices=["warm", "cold"], default="warm", help="cold: fresh blocks cost page faults"
    )
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: CPU time of one thread")
    parser.add_argument(
        "--out", type=Path, help=f"where to write the JSON (default: {RESULTS.name}/ALLOCATOR-CLOCK[-torch].json)"
    )
    options = parser.parse_args(arguments)
    if options.all:
        if options != parser.parse_args(["--all"]):
            parser.error("--all takes no other argument: it decides on the clock, the allocator and the files")
        return _run_all()
    if options.allocator == "cold" and is_warm():
        parser.error(f"--allocator cold: unset {', '.join(WARM_ALLOCATOR)}, which make the allocator warm")
    if options.allocator == "warm" and not is_warm() and arguments is None:
        # The allocator reads its settings when the process starts.
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], os.environ | WARM_ALLOCATOR)
    described = machine() | {"clock": options.clock}
    print(", ".join(f"{key} {value}" for key, value in described.items()))
    rows: list[Row] = []
    start = time.perf_counter()
    for name, section in SECTIONS.items():
        if options.only != name and (options.only or (name in ALONE and not options.quick)):
            continue
        for build in section.QUICK if options.quick else section.CASES:
            case = build()
            # Targets are for the full shapes.
            show(measure(dataclasses.replace(case, targets={}) if options.quick else case, options.clock), rows)
    if options.only in (None, "memory"):
        show(memory.rows(64, 16, (2000, 4000)) if options.quick else memory.rows(), rows)
    if options.only in (None, "memory", "constrained"):
        show(constrained.memory_rows(((2, 2, 4, 5),)) if options.quick else constrained.memory_rows(), rows)
    print(f"\n{sum(row.verdict == 'MISSED' for row in rows)} targets missed; {time.perf_counter() - start:.0f} s")
    whole = f"{described['allocator']}-{options.clock}{'' if described['kernel'] else '-torch'}"
    name = f"{options.only}-{whole}" if options.only in ALONE else None if options.only else whole
    out = options.out or (None if options.quick or name is None else RESULTS / f"{name}.json")
    if out:
        write(out, described, rows)
        print(f"written to {out}")
    return rows


def _run_all() -> list[Row]:
    """One run of what is measured together, and one of each other section, in CPU time; all write their results."""
    runs = [[], *(["--only", name, "--clock", "cpu", "--allocator", ALLOCATORS.get(name, "warm")] for name in ALONE)]
    for run in runs:
        subprocess.run([sys.executable, "-m", "benchmarks", *run], check=True)
    return []


def show(measured: list[Row], rows: list[Row]) -> None:
    """Print the rows under a heading a case, and keep them."""
    for row in measured:
        if not rows or rows[-1].case != row.case:
            print(f"\n{heading(row)}")
        print(line(row), flush=True)
        rows.append(row)


if __name__ == "__main__":
    main()
