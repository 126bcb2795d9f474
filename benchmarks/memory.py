"""Peak memory of one training step beyond its inputs, each step in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from ._case import Row
from ._impls import kernel
from ._inputs import linear_layer
from ._machine import WARM_ALLOCATOR
from ._step import loss_step
from .linear import candidates

CPP = ("linear_entmax_loss 1.5, cpp", "linear_alpha_relu_loss, cpp") if kernel() else ()
SIZES = (32_000, 50_000, 128_000, 256_000)
BASELINE = "linear + cross_entropy"
FUSED = ("linear_entmax_loss 1.5", "linear_sparsemax_loss", "linear_alpha_relu_loss", *CPP)
TAU = 7.9


def peak_mb(candidate: str, num_rows: int, width: int, num_classes: int) -> float:
    """Highest resident memory during one step less what was resident before it, in MB (10^6 bytes).

    Measured with the default allocator, which hands large blocks back: what is counted is what the step holds at a
    time. The gradients of hidden states and weight are part of it.
    """
    arguments = [sys.executable, "-m", __spec__.name, candidate, *map(str, (num_rows, width, num_classes))]
    environment = {name: value for name, value in os.environ.items() if name not in WARM_ALLOCATOR}
    result = subprocess.run(
        arguments, env=environment, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout)


def rows(num_rows: int = 2048, width: int = 512, sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """Against linear + cross_entropy at V = 50,000, and growth of the fused loss beyond the gradients."""
    found = []
    if 50_000 in sizes:
        baseline = peak_mb(BASELINE, num_rows, width, 50_000)
        for name in (BASELINE, *FUSED, "linear + entmax15_loss"):
            peak = baseline if name == BASELINE else peak_mb(name, num_rows, width, 50_000)
            target = 1 / 6 if name in FUSED else None
            found.append(
                _row(f"peak memory, N {num_rows}, D {width}, V 50000", name, peak, BASELINE, baseline, target)
            )
    beyond = {}
    for size in sizes:
        # The smallest of three: the system's own pages come and go by more than what is looked for here.
        peak = min(peak_mb(FUSED[0], num_rows, width, size) for _ in range(3))
        beyond[size] = peak - 4e-6 * width * (num_rows + size)
    for size, peak in beyond.items():
        target = None if size == sizes[0] else 1.25
        name = f"{FUSED[0]}, V = {size}"
        title = "peak memory beyond the gradients (flat if about 1)"
        found.append(_row(title, name, peak, f"V = {sizes[0]}", beyond[sizes[0]], target))
    return found


def _row(case: str, name: str, peak: float, baseline: str, baseline_peak: float, target: float | None) -> Row:
    ratio = peak / baseline_peak
    return Row(case, name, peak, "MB", baseline, ratio, (ratio, ratio), target, 1, 0)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main(candidate: str, num_rows: int, width: int, num_classes: int) -> None:
    loss = candidates(TAU)[candidate]
    # A small step first: libraries load their kernels and start their threads on first use.
    loss_step(loss, *linear_layer("trained", 16, 16, 2000))()
    step = loss_step(loss, *linear_layer("trained", num_rows, width, num_classes))
    before = _resident_mb()
    Path("/proc/self/clear_refs").write_text("5")  # restarts the high-water mark at what is resident now
    step()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps(int(peak.split()[1]) * 1024 / 1e6 - before))


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(sys.argv[1], *map(int, sys.argv[2:]))
