"""The environment of a run, for its record: commit, versions, hardware."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import evaluate
import tokenizers
import torch
import transformers

import hf_sparse

SCORERS = ("sacrebleu", "rouge_score")  # optional packages


def environment() -> dict[str, Any]:
    """Commit, versions of the packages that matter, and hardware.

    The commit is None outside a checkout, and ends with ``-dirty`` where files differ from it.
    """
    packages = (hf_sparse, torch, transformers, tokenizers, datasets, evaluate)
    versions = {package.__name__: str(package.__version__) for package in packages}
    versions |= {name: version(name) for name in SCORERS if find_spec(name)}
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    commit = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True)
    return {
        "commit": commit.stdout.strip() or None,
        "versions": {"python": platform.python_version()} | versions,
        "hardware": {
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
        },
    }


def short_commit(record: dict[str, Any]) -> str:
    """First ten digits of a record's commit, with ``-dirty`` where files differed from it."""
    commit = record["commit"] or "unknown"
    return commit[:10] + "-dirty" * commit.endswith("-dirty")


def versions_of(records: list[dict[str, Any]]) -> str:
    """The versions of torch and Transformers that records were made with, all of them where they differ."""
    found = {name: dict.fromkeys(record["versions"][name] for record in records) for name in ("torch", "transformers")}
    return ", ".join(f"{name} {' and '.join(versions)}" for name, versions in found.items())


def hardware_of(records: list[dict[str, Any]]) -> str:
    """The devices and the numbers of threads that records were made with, all of them where they differ."""
    devices = dict.fromkeys(record["hardware"]["device"] for record in records)
    threads = sorted({record["hardware"]["torch_threads"] for record in records})
    return f"{' and '.join(devices)}, {' and '.join(map(str, threads))} thread{'' if threads == [1] else 's'}"


def origin(records: list[dict[str, Any]]) -> str:
    """A sentence on the origin of figures: number of runs, CPU time, hardware, versions, commits.

    The CPU time leaves out the part of a run before an interruption; where a run has none, nothing is said of it.
    """
    commits = ", ".join(dict.fromkeys(map(short_commit, records)))
    seconds = [record.get("cpu_seconds") for record in records]
    spent = ""
    if None not in seconds:
        spent = f", {sum(seconds) / 60:.0f} minutes of CPU together without what was read or resumed"
    runs = f"{len(records)} run{'' if len(records) == 1 else 's'}"
    return f"{runs}{spent} ({hardware_of(records)}), {versions_of(records)}, commit {commits}."
