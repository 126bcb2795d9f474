"""The rows of a run, and the clocks that measure them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.testing import do_bench

from .._machine import machine

SMOKE = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE, DTYPE = ("cpu", torch.float32) if SMOKE else ("cuda", torch.bfloat16)
GRACE = 10  # seconds after its section's deadline at which what still runs is stopped, and after as many more killed
FAILURES = (
    ImportError, RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError, OSError,
    subprocess.SubprocessError, triton.TritonError,
)  # fmt: skip


def answers() -> bool:
    """Whether the GPU still works for this process: after a bad access it never does again."""
    try:
        if not SMOKE:
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def timed(run: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of a call, the median of many, and the most memory it held beyond what was there."""
    if SMOKE:
        start = time.perf_counter()
        run()
        return {"ms": 1e3 * (time.perf_counter() - start)}
    run()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    peak = torch.cuda.max_memory_allocated() - held
    return {"ms": do_bench(run, warmup=20, rep=80, return_mode="median"), "peak_mb": peak / 2**20}


def replayed(run: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of a call as one CUDA graph: what the GPU takes, without the host, which launches the kernels."""
    if SMOKE:
        return timed(run)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return {"ms": do_bench(graph.replay, warmup=20, rep=80, return_mode="median")}


def once(run: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of the second call, for what is long and compiles in its first."""
    run()
    start = time.perf_counter()
    run()
    return {"ms": 1e3 * (time.perf_counter() - start)}


class Report:
    """The rows of one run: each is measured, or tells why not. Written after every row, in case the next one hangs.

    Args:
        out: where they are written.
        start: of the run, seconds since the epoch.
        rows: of a process before this one.
    """

    def __init__(self, out: Path, start: float, rows: list[dict[str, Any]]) -> None:
        self.out, self.start, self.rows = out, start, rows
        self.running, self.deadline = "", float("inf")
        gpu = "none: interpreted, times mean nothing" if SMOKE else torch.cuda.get_device_name()
        self.machine = machine() | {"triton": triton.__version__, "gpu": gpu}

    def add(self, section: str, case: str, candidate: str, measured: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        row: dict[str, Any] = {"section": section, "case": case, "candidate": candidate}
        left = self.deadline - (time.time() - self.start)
        if left <= 0:
            row["skipped"] = f"{self.deadline} s were over"
        else:
            signal.setitimer(signal.ITIMER_REAL, left + GRACE)
            try:
                row |= measured()
            except ModuleNotFoundError as error:
                row["missing"] = f"{error.name} is not installed"
            except FAILURES as error:
                row["failed"] = described(error)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        self.rows.append(row)
        self.write()
        print(
            " ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()), flush=True
        )
        if "failed" in row and not answers():
            sys.exit("the GPU no longer answers this process")
        return row

    def write(self) -> None:
        found = {"machine": self.machine, "running": self.running, "rows": self.rows}
        new = self.out.with_suffix(".new")
        new.write_text(json.dumps(found, indent=1) + "\n")
        new.replace(self.out)

    def run(self, section: Callable[[Report], None], deadline: float) -> None:
        """A section, until so many seconds after the start; what fails between its rows ends it alone."""
        self.running, self.deadline = section.__name__, deadline
        self.write()
        try:
            section(self)
        except FAILURES as error:
            self.add(section.__name__, "inputs", "all that follow", lambda error=error: {"failed": described(error)})

    def compare(
        self,
        section: str,
        case: str,
        runs: dict[str, Callable[[], Any]],
        clock: Callable[[Callable[[], Any]], dict[str, float]] = timed,
        **about: float,
    ) -> None:
        """Time the runs; ratios are to the first that works, and every row says what the case is about."""
        baseline: dict[str, Any] = {}
        for name, run in runs.items():
            row = self.add(section, case, name, lambda run=run: clock(run) | about)
            if "ms" in row and baseline:
                row |= {"ratio": row["ms"] / baseline["ms"], "baseline": baseline["candidate"]}
                self.write()
                print(f"    {row['ratio']:.2f} of {row['baseline']}", flush=True)
            elif "ms" in row:
                baseline = row


def with_gradients(function: Callable[..., Tensor], *leaves: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """A call of ``function`` and of its backward."""
    leaves = tuple(leaf.detach().requires_grad_() for leaf in leaves)
    upstream: list[Tensor] = []  # made by the first call, which is not timed

    def run() -> tuple[Tensor, ...]:
        out = function(*leaves)
        if not upstream:
            upstream.append(torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype))
        return (out, *torch.autograd.grad(out, leaves, upstream[0]))

    return run


def batch_of(length: int) -> int:
    return 1 if SMOKE else max(1, 16_384 // length)
