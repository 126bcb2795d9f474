"""Write docs/gpu.json, what the kernels were checked for: `python -m tests.kernels.capabilities`."""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton

from hf_sparse.losses import _linear_solved
from tests.kernels import test_triton_attention as attention
from tests.kernels import test_triton_linear as linear
from tests.kernels.devices import DEVICE
from tests.kernels.served import served

PAGE = Path(__file__).parents[2] / "docs" / "gpu.json"


def rounded(errors: dict[str, float]) -> dict[str, float]:
    return {key: float(f"{error:.2g}") for key, error in errors.items()}


def main() -> None:
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "Triton's interpreter"
    cases = {name: rounded(attention.check(**case)) for name, case in attention.CASES.items()}
    _linear_solved._LISTED = linear.FEWEST_LISTED
    losses = {
        case: rounded(linear.errors(name, *linear.layer(std), **options))
        for case, (name, options, std) in linear.CASES.items()
    }
    found = {
        "device": device, "triton": triton.__version__, "tiers": served(), "cases": cases, "linear": losses,
    }  # fmt: skip
    PAGE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
