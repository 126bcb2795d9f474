"""What the runs of a study ran on."""

from __future__ import annotations

from typing import Any


def origin(runs: list[dict[str, Any]]) -> str:
    """How many runs, in how many minutes of CPU, on what, of which commits.

    What a run did before an interruption, and a model it read, are not in its seconds.
    """
    hardware, versions = runs[0]["hardware"], runs[0]["versions"]
    commits = ", ".join(dict.fromkeys((run["commit"] or "unknown")[:10] for run in runs))
    threads = f"{hardware['torch_threads']} thread{'s' if hardware['torch_threads'] > 1 else ''}"
    minutes = sum(run["cpu_seconds"] for run in runs) / 60
    return (
        f"{len(runs)} runs, {minutes:.0f} minutes of CPU together without what was read or resumed "
        f"({hardware['device']}, {threads}), torch {versions['torch']}, transformers "
        f"{versions['transformers']}, commit {commits}."
    )
