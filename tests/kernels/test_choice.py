"""Which implementation is taken, and what is said where the kernel cannot be."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_sparse.functional import entmax, entmax15
from hf_sparse.kernels import KernelUnavailable, chosen
from hf_sparse.losses import (
    entmax15_loss,
    entmax_loss,
    fenchel_young_loss,
    linear_entmax_loss,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
Z, Y = torch.tensor([[2.0, 1.0, -1.0]]), torch.tensor([0])


def test_an_unknown_impl_is_refused():
    message = "impl must be one of 'auto', 'cpp', 'torch', 'triton', was 'cuda'"
    for call in (
        lambda: entmax15(Z, impl="cuda"),
        lambda: entmax(Z, torch.tensor(1.5), impl="cuda"),
        lambda: entmax15_loss(Z, Y, impl="cuda"),
        lambda: fenchel_young_loss(Z, Y, "sparsegen_lin", impl="cuda"),
        lambda: linear_entmax_loss(Z, torch.eye(3), Y, impl="cuda"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("z", "alpha", "message"),
    [
        (Z.double(), 1.5, r"takes scores of torch.float32, torch.bfloat16, torch.float16, were torch.float64"),
        (Z.to("meta"), 1.5, "takes scores on the CPU, were on meta"),
        (Z.as_subclass(type("Mine", (torch.Tensor,), {})), 1.5, "takes plain tensors, was Mine"),
        (Z, 1.0, r"takes alpha in \[1.0000001, 2.0\], was 1.0"),
        (Z, 2.5, r"takes alpha in \[1.0000001, 2.0\], was 2.5"),
    ],
)
def test_an_explicit_cpp_never_falls_back(z, alpha, message):
    with pytest.raises(ValueError, match=f'impl="cpp" {message}; use impl="auto" or impl="torch"'):
        entmax(z, alpha, impl="cpp")
    assert chosen("auto", z, alpha) == "torch"


def test_losses_refuse_what_the_kernel_does_not_know():
    with pytest.raises(ValueError, match=r"takes alpha in \[1.0000001, 2.0\], was 1.0"):  # of classes it knows it
        entmax_loss(Z, torch.softmax(Z, -1), 1.0, impl="cpp")
    with pytest.raises(ValueError, match=r"takes scores of .*, were torch.float64"):
        entmax_loss(Z.double(), Y, 1.0, impl="cpp")
    with pytest.raises(ValueError, match="takes one number for alpha"):
        entmax_loss(Z, Y, torch.tensor(1.5), impl="cpp")
    known = "'alpha_relu', 'entmax', 'entmax15', 'sparsemax'"
    with pytest.raises(ValueError, match=f"impl=\"cpp\" knows {known}, not 'sparsegen_lin'"):
        fenchel_young_loss(Z, Y, "sparsegen_lin", impl="cpp")


@needs_compiler
def test_compiled_code_is_never_the_kernels():
    compiled = torch.compile(lambda z: entmax15(z, impl="auto"), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(Z), entmax15(Z, impl="torch"))


def run(code, tmp_path, **environment):
    """The last line that a fresh process with an empty cache prints."""
    start = "import torch, hf_sparse.functional as F\nfrom hf_sparse.kernels import chosen\n"
    inherited = {key: value for key, value in os.environ.items() if key not in ("CXX", "HF_SPARSE_CPP")}
    paths = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", start + code], capture_output=True, text=True, env=inherited | paths | environment
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip().splitlines()[-1]


WORKS = "p = F.entmax15(torch.zeros(64, 20_000)); assert abs(float(p.sum()) - 64) < 1e-3\n"
REASON = """
try:
    F.entmax15(torch.zeros(2), impl='cpp')
except RuntimeError as error:
    print(type(error).__name__, error)"""


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"HF_SPARSE_CPP": "0"}, "KernelUnavailable the environment variable HF_SPARSE_CPP=0 turns"),
        (
            {"PATH": "/nowhere"},
            "KernelUnavailable no C++ compiler was found: install g++ or clang++, or name one",
        ),
        ({"CXX": "false"}, "KernelUnavailable false failed on attention.cpp"),
        ({"CXX": 'g++ "'}, "KernelUnavailable CXX must be a command"),
        (
            {"XDG_CACHE_HOME": "/dev/null"},
            "KernelUnavailable the C++ kernel could not be built in /dev/null",
        ),
    ],
)
def test_auto_works_without_the_kernel_and_cpp_says_why(tmp_path, environment, reason):
    taken = "assert chosen('auto', torch.zeros(1 << 20), 1.5) == 'torch'"
    assert run(WORKS + taken + REASON, tmp_path, **environment).startswith(reason)


def test_importing_and_small_inputs_compile_nothing_but_large_ones_do(tmp_path, kept_compiler):
    folder, which = tmp_path / "cache", "print(chosen('auto', torch.zeros(3), 1.5))"
    assert run("F.entmax15(torch.zeros(3)); " + which, tmp_path, CXX=kept_compiler) == "torch"
    assert not folder.exists()
    assert run(WORKS + which, tmp_path, CXX=kept_compiler) == "cpp"
    assert run(which, tmp_path, CXX=kept_compiler) == "cpp"
    assert len(list(folder.rglob("*"))) == 2  # the folder and one library: no temporary file is left


def test_each_instruction_set_has_its_own_library_and_all_agree(tmp_path, kept_compiler):
    code = (
        "z = torch.randn(9, 6001, generator=torch.Generator().manual_seed(0)).bfloat16().float()\n"
        "print([round(float(F.entmax(z, a, impl='cpp').square().sum()), 4) for a in (1.3, 1.5, 2.0)])"
    )
    capabilities = ["default", torch.backends.cpu.get_cpu_capability().lower()]
    answers = [run(code, tmp_path, ATEN_CPU_CAPABILITY=name, CXX=kept_compiler) for name in capabilities]
    assert answers[0] == answers[1]
    assert len(list((tmp_path / "cache" / "hf_sparse").iterdir())) == len(set(capabilities))


def test_two_processes_that_build_at_once_both_end_with_the_kernel(tmp_path, kept_compiler):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "CXX": kept_compiler}
    code = (
        "import torch; from hf_sparse.functional import entmax15; print(entmax15(torch.zeros(2), impl='cpp').tolist())"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in processes] == ["[0.5, 0.5]"] * 2
    assert len(list((tmp_path / "hf_sparse").iterdir())) == 1


def test_auto_takes_triton_on_a_gpu_where_its_kernels_are_right(monkeypatch):
    asked = []
    verdict = {"rows": True}
    monkeypatch.setattr(
        "hf_sparse.kernels._choice.triton_is_automatic", lambda *about: asked.append(about) or verdict["rows"]
    )
    z = Z.to("meta")
    assert chosen("auto", z, 1.5) == "triton"
    assert chosen("auto", Z, 1.5) != "triton"
    assert chosen("auto", z, 3.0) == "torch"
    verdict["rows"] = False
    assert chosen("auto", z, 1.5) == "torch"
    assert asked == [("rows", z.device)] * 2


def test_triton_is_never_auto_on_the_cpu_and_says_why_it_cannot_run(monkeypatch):
    assert chosen("auto", Z, 1.5) != "triton"
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr("hf_sparse.kernels._triton_device.find_spec", lambda name: True)
    for z, message in ((Z, "run on NVIDIA GPUs; the scores were on the CPU"), (Z.to("meta"), "scores were on meta")):
        with pytest.raises(KernelUnavailable, match=message):
            entmax15(z, impl="triton")
    monkeypatch.setattr("hf_sparse.kernels._triton_device.find_spec", lambda name: None)
    with pytest.raises(KernelUnavailable, match=r"triton is not installed: pip install 'hf_sparse\[gpu\]'"):
        entmax15(Z, impl="triton")
    monkeypatch.setenv("HF_SPARSE_TRITON", "0")
    with pytest.raises(KernelUnavailable, match="HF_SPARSE_TRITON=0 turns the Triton kernels off"):
        entmax15(Z, impl="triton")


def test_importing_the_package_loads_no_triton_kernel(tmp_path):
    code = "import sys; sys.modules['triton'] = None; import hf_sparse, hf_sparse.attention\n"
    assert run(code + "print('hf_sparse.kernels.gpu.rows' in sys.modules)", tmp_path) == "False"
