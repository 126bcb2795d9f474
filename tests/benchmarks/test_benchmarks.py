"""The benchmark runner works end to end; nothing here looks at a time."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
