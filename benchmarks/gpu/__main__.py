"""``python -m benchmarks.gpu [--smoke] [--sections NAME ...] [--out FILE]``: the Triton kernels beside softmax's.

Correctness comes first, in bfloat16 against float64; then times and peak memory, each as a ratio to its baseline in
the same run; last, which targets were met. A candidate that is not installed or fails costs its own row only, and says
why. Every section ends by its deadline, the last one before twelve minutes: what it has not measured then is
skipped, by name. The sections run in a process of their own: one that hangs, or whose GPU no longer answers, is ended,
and the others go on in a new one. The JSON is written after every row.
``--smoke`` runs everything in Triton's interpreter, on the CPU, at sizes that say nothing: to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from .._targets import verdicts
from ._checks import check
from ._kernels import attention, decode, fused, others, rows
from ._models import generation, models
from ._report import GRACE, SMOKE, Report

OUT = Path(__file__).parents[1] / "results" / "gpu.json"
# By when each is over, in seconds from the start; what one leaves is the next one's. The interpreter is in no hurry.
SECTIONS = {
    section: seconds * (10 if SMOKE else 1)
    for section, seconds in {
        check: 90,
        rows: 140,
        fused: 190,
        decode: 215,
        generation: 330,
        models: 365,
        attention: 535,
        others: 685,
    }.items()
}


def work(out: Path, start: float, names: list[str]) -> None:
    """Run the named sections, adding to what is in ``out``."""
    signal.signal(signal.SIGALRM, stop)
    report = Report(out, start, json.loads(out.read_text())["rows"])
    for section in SECTIONS:
        if section.__name__ in names:
            report.run(section, SECTIONS[section])


def stop(signum: int, frame: Any) -> None:
    raise TimeoutError("its section's time was over")


def supervise(out: Path, names: list[str], arguments: list[str]) -> list[dict[str, Any]]:
    """Run the named sections in a process of their own, or in several where one dies or hangs; returns the rows."""
    deadlines = {section.__name__: deadline for section, deadline in SECTIONS.items()}
    start = time.time()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"rows": []}))
    while names:
        command = [sys.executable, "-m", "benchmarks.gpu", *arguments, "--out", str(out), "--work", str(start), *names]
        worker, killed = subprocess.Popen(command), False
        while worker.poll() is None:
            time.sleep(0.5)
            running = json.loads(out.read_text()).get("running", names[0])
            if time.time() - start > deadlines[running] + 2 * GRACE:
                killed = True
                worker.kill()
                worker.wait()
        found = json.loads(out.read_text())
        name = found.pop("running", names[0])
        names = names[names.index(name) + 1 :] if worker.returncode else []
        if worker.returncode:
            why = "hung, and was killed" if killed else f"died: its process ended with {worker.returncode}"
            found["rows"].append({"section": name, "case": "the rest", "candidate": "all that follow", "failed": why})
            print(name, why, flush=True)
        if not SMOKE:
            found["targets"] = verdicts(found["rows"])
        out.write_text(json.dumps(found, indent=1) + "\n")
    return found["rows"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, in Triton's interpreter on the CPU")
    parser.add_argument("--out", type=Path, help=f"where to write the JSON (default: {OUT.name}; nowhere for --smoke)")
    names = [section.__name__ for section in SECTIONS]
    parser.add_argument("--sections", nargs="+", choices=names, default=names, help="run these only")
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke and not SMOKE:
        # Triton reads this when it is first imported.
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:]], environment)
    if not SMOKE and not torch.cuda.is_available():
        parser.error("no GPU was found; --smoke runs without one")
    if options.work:
        work(options.out, float(options.work[0]), options.work[1:])
        return 0
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        out = options.out or (Path(folder) / OUT.name if SMOKE else OUT)
        chosen = [name for name in names if name in options.sections]
        rows = supervise(out, chosen, ["--smoke"] if options.smoke else [])
    checks = [row for row in rows if row["section"] == "check"]
    wrong = sum(row.get("verdict") != "right" for row in checks)
    for verdict in verdicts(rows):
        told = "not judged" if SMOKE and "reached" in verdict else verdict["verdict"]
        reached = f"{verdict['reached']:.2f} at {verdict['worst case']}" if "reached" in verdict else ""
        print(f"{told}: {verdict['target']}: at most {verdict['at most']}", *[reached] * bool(reached), sep=", ")
    print(f"{wrong} of {len(checks)} checks wrong; {time.time() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
