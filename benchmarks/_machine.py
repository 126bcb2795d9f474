"""What a number was measured on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import torch

from ._impls import kernel

# Large blocks are kept by the process instead of being mapped afresh, so that no candidate pays for page faults.
WARM_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "200000000000",
    "MALLOC_TOP_PAD_": "500000000",
}


def is_warm() -> bool:
    return all(os.environ.get(name) == value for name, value in WARM_ALLOCATOR.items())


def machine() -> dict[str, object]:
    """Hardware, versions, commit, allocator regime, and whether there is a C++ kernel."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "allocator": "warm" if is_warm() else "cold",
        "kernel": kernel(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "entmax": importlib.metadata.version("entmax"),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _commit() -> str:
    """The commit of the code, marked where files differ from it; but not the results, which a run itself writes."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)benchmarks/results")
    return _git("describe", "--always", "--abbrev=12") + ("-dirty" if changed != "unknown" else "")


def _git(*arguments: str) -> str:
    here = Path(__file__).parent
    result = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"  # nothing at all, too
