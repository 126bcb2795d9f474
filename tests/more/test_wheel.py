"""A wheel with the kernel inside is used without a compiler; ``release/try.sh`` tries it without this checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hf_sparse.kernels._recipe import INSTRUCTIONS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ is installed")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, env={**os.environ, "HF_SPARSE_PREBUILT": "1"})
    (path,) = folder.glob("*.whl")
    return path


def test_it_is_for_this_platform_and_has_the_package_alone(wheel):
    assert "-py3-none-linux_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"hf_sparse"}
    kernels = [name for name in names if name.startswith("hf_sparse/kernels/prebuilt/")]
    assert len(kernels) == (len(INSTRUCTIONS) + 1 if "x86_64" in wheel.name else 1)


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_its_kernel_runs_without_a_compiler_and_without_a_cache(wheel, capability, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    clean = {
        "PYTHONPATH": str(tmp_path / "site"),
        "HOME": str(tmp_path),
        "PATH": "",
        "ATEN_CPU_CAPABILITY": capability,
    }
    command = [sys.executable, str(ROOT / "release" / "use.py")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("fine\n")
    assert not (tmp_path / ".cache" / "hf_sparse").exists()
