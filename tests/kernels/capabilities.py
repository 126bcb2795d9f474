"""Write docs/gpu.json, the cases and errors of the checked kernels: `python -m tests.kernels.capabilities`.

With TRITON_INTERPRET=0 the errors are those on a GPU; which calls each backend serves is asked on the CPU alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton

from hf_sparse.losses.linear import _triton as linear_triton
from tests.kernels import test_triton_attention as attention
from tests.kernels import test_triton_linear as linear
from tests.kernels.devices import DEVICE, INTERPRETED
from tests.kernels.served import served

PAGE = Path(__file__).parents[2] / "docs" / "gpu.json"


def rounded(errors: dict[str, float]) -> dict[str, float]:
    return {key: float(f"{error:.2g}") for key, error in errors.items()}


def worst_at(level: str, found: list[tuple[dict[str, str], dict[str, float]]]) -> dict[str, float]:
    """The largest errors of the cases at a level: of those in float32, unless the level is another dtype."""
    dtype = level if level in attention.FACTORS["dtype"] else "float32"
    at_level = [errors for case, errors in found if level in case.values() and case["dtype"] == dtype]
    names = dict.fromkeys(name for errors in at_level for name in errors)
    return {name: max(errors.get(name, 0.0) for errors in at_level) for name in names}


def main() -> None:
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "Triton's interpreter"
    found = [(case, attention.check_case(case.values())) for case in attention.CASES]
    cases = {level: rounded(worst_at(level, found)) for level in attention.LEVELS}
    linear_triton._LISTED = linear.FEWEST_LISTED
    losses = {
        case: rounded(linear.errors(name, *linear.layer(std), **options))
        for case, (name, options, std) in linear.CASES.items()
    }
    backends = served() if INTERPRETED else json.loads(PAGE.read_text())["backends"]
    page = {
        "device": device, "triton": triton.__version__, "backends": backends, "cases": cases, "linear": losses,
    }  # fmt: skip
    PAGE.write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()
