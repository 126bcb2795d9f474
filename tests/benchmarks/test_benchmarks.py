"""The benchmark runner works end to end; nothing here looks at a time."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.devices import needs_triton

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@needs_triton
def test_the_gpu_benchmark_runs_in_the_interpreter_and_finds_the_kernels_right(tmp_path):
    out = tmp_path / "smoke.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--smoke", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, check=True)
    rows = json.loads(out.read_text())["rows"]
    assert {row["section"].partition(",")[0] for row in rows} == {
        "check", "rows", "fused linear loss", "attention", "decode",
    }  # fmt: skip
    assert all(row["verdict"] == "right" for row in rows if row["section"] == "check")
    assert not any("failed" in row or "skipped" in row for row in rows)
    peers = {row["candidate"]: row["missing"] for row in rows if "missing" in row}
    assert peers.items() <= {
        "liger": "liger_kernel is not installed", "adasplash 2": "adasplash is not installed",
    }.items()  # fmt: skip


def test_quick_run_prints_a_table_and_writes_json(tmp_path):
    out = tmp_path / "quick.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--clock", "cpu", "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    written = json.loads(out.read_text())
    assert {"commit", "cpu", "cores", "torch", "entmax", "allocator"} <= set(written["machine"])
    assert written["machine"]["allocator"] == "warm"
    assert all(math.isfinite(row["ratio"]) and row["value"] > 0 for row in written["rows"] if row["unit"] == "ms")
    assert {row["unit"] for row in written["rows"]} == {"ms", "MB"}
    assert all(row["candidate"] in result.stdout for row in written["rows"])
