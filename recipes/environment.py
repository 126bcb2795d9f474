"""What a run of a recipe ran on, for its record."""

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

SCORERS = ("sacrebleu", "rouge_score")  # of the recipes that need them


def environment() -> dict[str, Any]:
    """Versions and hardware, for the record."""
    packages = (hf_sparse, torch, transformers, tokenizers, datasets, evaluate)
    versions = {package.__name__: str(package.__version__) for package in packages}
    versions |= {name: version(name) for name in SCORERS if find_spec(name)}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
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
