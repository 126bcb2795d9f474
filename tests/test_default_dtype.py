"""torch's default dtype is the user's: results do not depend on it, and kernels write within their memory.

Lightning sets it for ``precision="bf16-true"``, others set it to float64 for all they compute.
"""

import shutil
from contextlib import contextmanager
from functools import partial

import pytest
import torch

import hf_sparse.functional as F
from hf_sparse import sparsify
from hf_sparse.attention import set_impl
from hf_sparse.losses import alpha_relu_loss, entmax_loss
from tests.tiny_models import labelled, tiny_model, tokens

DTYPES = [torch.bfloat16, torch.float16, torch.float64]
needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)
IMPLS = ["torch", pytest.param("cpp", marks=needs_compiler)]


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def same_under(dtype, compute):
    """Check that a function returns the same tensors, bit by bit, under another default dtype."""
    expected = compute()
    with default_dtype(dtype):
        found = compute()
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def scores(rows=4, columns=5000):
    return 3 * torch.randn(rows, columns, dtype=torch.float32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("columns", [60, 5000])
@pytest.mark.parametrize("alpha", [1.01, 1.3, 1.5, 2.0])
def test_maps(alpha, columns, impl, dtype):
    def compute():
        z = scores(columns=columns).requires_grad_()
        p = F.entmax(z, alpha=alpha, impl=impl)
        return p, *torch.autograd.grad((p * p).sum(), z)

    same_under(dtype, compute)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("columns", [60, 5000])
@pytest.mark.parametrize(
    "loss",
    [
        partial(entmax_loss, alpha=1.0),
        partial(entmax_loss, alpha=1.5),
        partial(alpha_relu_loss, alpha=1.5, tau=0.5),
        partial(alpha_relu_loss, alpha=1.5, tau=-20.0),  # every class has weight
    ],
)
def test_losses(loss, columns, impl, dtype):
    def compute():
        z, y = scores(columns=columns).requires_grad_(), torch.tensor([3, 0, 59, 7])
        value = loss(z, y, impl=impl)
        return value, *torch.autograd.grad(value, z)

    same_under(dtype, compute)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("fused_loss", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen3", "bart", "gemma2"])
def test_a_step_of_training(name, fused_loss, impl, dtype):
    learned = {"name": "entmax", "alpha": {"learned": 1.4}, "temperature": 0.7}

    def compute():
        model = sparsify(model_of(name), attn=learned, head="entmax15", fused_loss=fused_loss).train()
        set_impl(model, impl)
        loss = model(**labelled(model)).loss
        loss.backward()
        return loss, *(p.grad for p in model.parameters() if p.grad is not None)

    def model_of(name):
        with default_dtype(torch.float32):  # as it was loaded
            return tiny_model(name)

    same_under(dtype, compute)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, pytest.param({"cache_implementation": "screened"}, marks=needs_compiler)]
)
def test_decoding(options, dtype):
    model = sparsify(tiny_model("llama"), attn="entmax15", head="sparsemax")
    ids = tokens(1, 40)

    def compute():
        return (model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None, **options),)

    same_under(dtype, compute)
