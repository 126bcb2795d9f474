"""Where the Triton kernels run in the tests: in the interpreter, on the CPU, or on a GPU where that is asked for."""

import os
from importlib.util import find_spec

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None or not (INTERPRETED or torch.cuda.is_available()),
    reason="triton is not installed, or there is neither its interpreter (TRITON_INTERPRET=1) nor a GPU",
)
