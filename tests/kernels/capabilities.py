"""Write docs/gpu.json, what flash entmax was checked for: `python -m tests.kernels.capabilities`."""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton

from tests.kernels.test_triton_attention import CASES, DEVICE, check

PAGE = Path(__file__).parents[2] / "docs" / "gpu.json"


def main() -> None:
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "Triton's interpreter"
    cases = {
        name: {key: float(f"{error:.2g}") for key, error in check(**case).items()} for name, case in CASES.items()
    }
    PAGE.write_text(json.dumps({"device": device, "triton": triton.__version__, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
