"""Peak memory of the process: on a GPU and on Linux; elsewhere it is unknown."""

from __future__ import annotations

from pathlib import Path

import torch


def reset_peak_memory() -> None:
    """Measure the peak from now on."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")


def peak_memory() -> int | None:
    """Largest memory since ``reset_peak_memory`` in bytes, the GPU's or else resident; None where unknown."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024
