"""What a run of a recipe ran on, for its record."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import datasets
import evaluate
import tokenizers
import torch
import transformers

import hf_sparse


def environment() -> dict[str, Any]:
    """Versions and hardware, for the record."""
    packages = (hf_sparse, torch, transformers, tokenizers, datasets, evaluate)
    versions = {package.__name__: str(package.__version__) for package in packages}
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
