"""The benchmark runner works end to end; nothing here looks at a time."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cache
from benchmarks.__main__ import ALONE, main
from benchmarks._machine import WARM_ALLOCATOR
from benchmarks._targets import TARGETS, verdicts
from hf_sparse.kernels import cpp_available
from tests.kernels.devices import needs_triton

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@needs_triton
def test_the_gpu_benchmark_runs_in_the_interpreter_and_finds_the_kernels_right(tmp_path):
    out = tmp_path / "smoke.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--smoke", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, check=True)
    rows = json.loads(out.read_text())["rows"]
    assert {row["section"].partition(",")[0] for row in rows} == {
        "check", "rows", "fused linear loss", "attention", "decode", "generate", "training step",
    }  # fmt: skip
    assert all(row["verdict"] == "right" for row in rows if row["section"] == "check")
    assert not any("failed" in row or "skipped" in row for row in rows)
    peers = {row["candidate"]: row["missing"] for row in rows if "missing" in row}
    assert peers.items() <= {
        "liger": "liger_kernel is not installed", "adasplash 2": "adasplash is not installed",
    }.items()  # fmt: skip


@needs_triton
def test_a_section_that_dies_does_not_lose_the_others(tmp_path):
    package = tmp_path / "liger_kernel" / "ops"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "fused_linear_cross_entropy.py").write_text("import os\nos._exit(3)\n")
    out = tmp_path / "smoke.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--smoke", "--sections", "fused", "decode", "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    died, *others = json.loads(out.read_text())["rows"]
    assert died["failed"] == "died: its process ended with 3"
    assert {row["section"] for row in others if "ms" in row} == {"decode, one query"}
    assert result.stdout.count("not measured: ") == len(TARGETS)


def test_all_runs_every_section_into_a_file_of_its_own(monkeypatch):
    runs = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: runs.append(" ".join(command[3:])))
    main(["--all"])
    together, *others = runs
    assert together == ""
    assert [run.split()[1] for run in others] == list(ALONE)
    assert "--only models --clock cpu --allocator cold" in others


@pytest.mark.parametrize("other", [["--quick"], ["--only", "maps"], ["--clock", "cpu"], ["--out", "x.json"]])
def test_all_takes_no_other_argument(other, capsys):
    with pytest.raises(SystemExit):
        main(["--all", *other])
    assert "--all takes no other argument" in capsys.readouterr().err


def test_the_screened_step_over_a_long_cache_reads_few_keys_in_every_round():
    if not cpp_available(build=True):
        pytest.skip("no C++ kernel")
    screened = cache.step(64, "wide").candidates["entmax15, screened"]
    *_, held = screened.args
    for round_ in (2, 3):
        screened()
        assert [(reads.calls, reads.proved) for reads in held.reads] == [(round_, round_)]


def test_targets_are_judged_by_their_worst_case_and_the_fastest_baseline():
    linear = {"section": "fused linear loss, forward + backward", "case": "N"}
    rows = [
        linear | {"candidate": "liger", "ms": 10.0}, linear | {"candidate": "linear_cross_entropy", "ms": 8.0},
        linear | {"candidate": "linear entmax15 loss", "ms": 4.0},
    ]  # fmt: skip
    for density, length, ours in ((0.5, 2048, 0.9), (0.5, 32_768, 1.1), (0.25, 2048, 0.4)):
        of = {"section": "attention, forward + backward", "case": f"{length} {density}", "density": density}
        of |= {"length": length, "tokens": length}
        memory = {"peak_mb": length * (2.0 if length == 2048 else 2.5)}
        rows += [of | {"candidate": "SDPA flash", "ms": 2.0}, of | {"candidate": "SDPA cuDNN", "ms": 1.0}]
        rows.append(of | memory | {"candidate": "flash entmax15", "ms": ours * 2})
    found = {row.pop("target"): row for row in verdicts(rows)}
    flash = "flash entmax15 at density {}, of FlashAttention-2"
    assert found.pop("fused linear entmax15 loss, of fused cross-entropy") == {
        "at most": 0.5, "reached": 0.5, "worst case": "N", "cases": 1, "verdict": "met",
    }  # fmt: skip
    assert found.pop(flash.format(0.25))["verdict"] == "met"
    missed = found.pop(flash.format(0.5))
    assert missed["verdict"] == "MISSED"
    assert missed["worst case"] == "32768 0.5"
    grown = found.pop("peak memory of a token in flash entmax15, 32k of 2k tokens")
    assert (grown["reached"], grown["verdict"]) == (1.25, "met")
    assert {row["verdict"] for row in found.values()} == {"not measured"}


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


def test_the_allocator_is_the_one_that_was_asked_for(monkeypatch, capsys):
    for name, value in WARM_ALLOCATOR.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main(["--quick", "--allocator", "cold"])
    assert f"--allocator cold: unset {', '.join(WARM_ALLOCATOR)}" in capsys.readouterr().err
    monkeypatch.delenv(next(iter(WARM_ALLOCATOR)))
    started = []
    monkeypatch.setattr("os.execve", lambda *call: started.append(call) or sys.exit())
    monkeypatch.setattr("sys.argv", ["benchmarks", "--quick", "--out", "cold/run.json"])
    with pytest.raises(SystemExit):
        main()
    ((_, command, environment),) = started
    assert command[-3:] == ["--quick", "--out", "cold/run.json"]
    assert environment.items() >= WARM_ALLOCATOR.items()
