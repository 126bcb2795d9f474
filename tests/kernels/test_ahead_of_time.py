"""The Triton kernels compile for NVIDIA's data-centre GPUs, without one, and once for all lengths."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_the_kernels_compile_for_sm_80_sm_90_and_sm_100(tmp_path):
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.kernels.ahead_of_time"],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], env=environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert all(f"sm_{architecture}" in result.stdout for architecture in (80, 90, 100))
    assert result.stdout.count("whatever the length") == 4
