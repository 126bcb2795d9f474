"""What lets ``impl="auto"`` take the Triton kernels: they agree with float64 there, and mistakes are noticed."""

import warnings
from subprocess import CalledProcessError

import pytest
import torch

from hf_sparse.kernels import _self_check, triton_is_automatic
from hf_sparse.kernels._self_check import self_check
from tests.kernels.devices import DEVICE, needs_triton
from tests.reference import entmax_by_bisection

HERE = torch.device(DEVICE)


@pytest.fixture
def verdict(monkeypatch):
    """The check's findings, in place of a GPU's."""
    found, asked = {"rows": None, "attention": None}, []
    monkeypatch.delenv("HF_SPARSE_TRITON", raising=False)
    monkeypatch.setattr(_self_check, "triton_problem", lambda device: None)
    monkeypatch.setattr(_self_check, "self_check", lambda kernels, device: asked.append(kernels) or found[kernels])
    _self_check._agrees.cache_clear()
    yield found, asked
    _self_check._agrees.cache_clear()


def test_the_closed_forms_are_entmax():
    z = torch.randn(50, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    torch.testing.assert_close(_self_check._entmax15(z), entmax_by_bisection(z, 1.5))
    torch.testing.assert_close(_self_check._sparsemax(z), entmax_by_bisection(z, 2.0))


@needs_triton
@pytest.mark.parametrize("kernels", ["rows", "attention"])
def test_the_kernels_pass_whatever_goes_on_around_them(kernels):
    with torch.inference_mode(), torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert self_check(kernels, HERE) is None


@needs_triton
@pytest.mark.parametrize(
    ("kernels", "function", "factor", "wrong"),
    [
        ("rows", "triton_weights", 1.02, ["weights", "weights of any alpha", "weights of sparsemax"]),
        ("rows", "triton_jacobian_product", 1.02, ["their gradients"]),
        ("rows", "triton_loss_gradients", float("nan"), ["gradients of the loss"]),
        ("rows", "triton_loss_gradients", 1.02, ["its gradients"]),
        ("rows", "triton_multiply", 1.02, ["products with the list"]),
        ("attention", "triton_attention", 1.02, ["gradients of keys, torch.float32"]),
        ("attention", "triton_attention", 1.02, ["gradients of values with padding"]),
        ("attention", "triton_decode_values", float("nan"), ["one query, torch.float16"]),
    ],
)
def test_a_kernel_that_is_wrong_is_noticed(monkeypatch, kernels, function, factor, wrong):
    right = getattr(_self_check, function)
    monkeypatch.setattr(_self_check, function, lambda *args, **kwargs: right(*args, **kwargs) * factor)
    dtypes = [dtype for dtype in (torch.float32, torch.float16) if str(dtype) in str(wrong)]
    monkeypatch.setattr(_self_check, "_ATTENTION_TOLERANCE", dict.fromkeys(dtypes, 5e-3))
    noticed = self_check(kernels, HERE).split("; ")
    assert set(wrong) <= {what.partition(" off by ")[0] for what in noticed}


@needs_triton
@pytest.mark.parametrize(
    "error",
    [RuntimeError("CUDA error: no kernel image"), FileNotFoundError("gcc"), CalledProcessError(1, "gcc")],
    ids=lambda error: type(error).__name__,
)
def test_a_kernel_that_does_not_run_is_noticed(monkeypatch, error):
    def broken(*args, **kwargs):
        raise error

    monkeypatch.setattr(_self_check, "triton_solve", broken)
    assert self_check("rows", HERE) == f"{type(error).__name__}: {error}"


def test_the_kernels_are_checked_once_and_each_kind_for_itself(verdict):
    found, asked = verdict
    found["attention"] = "keys off by 3 times the tolerance"
    with pytest.warns(RuntimeWarning, match=r"kernels for attention failed their check there \(keys off by 3"):
        assert not triton_is_automatic("attention", HERE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not triton_is_automatic("attention", HERE)
        assert triton_is_automatic("rows", HERE)
        assert triton_is_automatic("rows", HERE)
    assert asked == ["attention", "rows"]


def test_the_environment_decides_unchecked(verdict, monkeypatch):
    monkeypatch.setenv("HF_SPARSE_TRITON", "1")
    assert triton_is_automatic("rows", HERE)
    monkeypatch.setattr(_self_check, "triton_problem", lambda device: "HF_SPARSE_TRITON=0 turns them off")
    assert not triton_is_automatic("rows", HERE)
    assert verdict[1] == []


def test_a_compiler_takes_the_verdict_as_a_constant(verdict):
    def double_where_right(x):
        return x * 2 if triton_is_automatic("rows", x.device) else x

    compiled = torch.compile(double_where_right, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert verdict[1] == ["rows"]
