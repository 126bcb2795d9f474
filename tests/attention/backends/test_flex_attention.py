"""entmax by FlexAttention is entmax: outputs and gradients against float64 with every score written down."""

from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import flex_attention as torch_flex

from hf_sparse import sparsify
from hf_sparse.attention import flex_entmax_attention, set_impl
from hf_sparse.attention._call import AttentionCall
from hf_sparse.attention.backends import _flex
from hf_sparse.attention.interface import sparse_attention
from hf_sparse.attention.site import SITE, AttentionSite
from hf_sparse.attention.support_count import SupportCount
from hf_sparse.config import MapConfig
from hf_sparse.functional import entmax
from tests.tiny_models import labelled, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture
def gradients_on_the_cpu(monkeypatch):
    """FlexAttention's formulas differentiate on the CPU too; torch refuses it because no fast kernel does."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)


def drawn(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def visible(b, h, i, j):
    """Later keys and, to one query, all keys are hidden."""
    return (j <= i + 8) & (i != 3)


def bent(score, b, h, i, j):
    """A softcap and a slope that depends on the head."""
    return 5 * torch.tanh(score / 5) - 0.1 * (i - j).abs() * (h + 1)


def written_down(q, k, v, alpha):
    b, h, i, j = (
        torch.arange(n).view([-1 if axis == a else 1 for a in range(4)]) for axis, n in enumerate((2, 4, 20, 28))
    )
    z = q @ k.repeat_interleave(2, 1).mT * q.shape[-1] ** -0.5
    z = bent(z, b, h, i, j).masked_fill(~visible(b, h, i, j), -torch.inf)
    return entmax(z, alpha, impl="torch") @ v.repeat_interleave(2, 1)


@pytest.mark.usefixtures("gradients_on_the_cpu")
@pytest.mark.parametrize(
    ("alpha", "dtype"), [(1.5, torch.float64), (1.2, torch.float64), (2.0, torch.float32)], ids=str
)
def test_any_score_and_mask_function_gives_entmax_and_its_gradients(alpha, dtype):
    q, k, v, upstream = drawn((2, 4, 20, 8), (2, 2, 28, 8), (2, 2, 28, 5), (2, 4, 20, 5), dtype=dtype)
    tensors = [x.requires_grad_() for x in (q * 3, k, v)]
    blocks = torch_flex.create_block_mask(visible, None, None, 20, 28, device="cpu")
    out = flex_entmax_attention(*tensors, alpha, score_mod=bent, block_mask=blocks)
    wide = [x.detach().double().requires_grad_() for x in tensors]
    expected = written_down(*wide, alpha)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=0)
    assert bool((out[:, :, 3] == 0).all())
    found = torch.autograd.grad(out, tensors, upstream)
    for mine, theirs in zip(found, torch.autograd.grad(expected, wide, upstream.double())):
        torch.testing.assert_close(mine.double(), theirs, atol=tolerance, rtol=0)


@pytest.mark.slow
@pytest.mark.usefixtures("gradients_on_the_cpu")
def test_the_compiled_form_is_whole_graphs_that_no_length_adds_to(monkeypatch):
    """As on a GPU but for the code that is generated: what torch.compile sees, and how often it has to look."""
    graphs, engine = CompileCounter(), _flex._engine
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=graphs))
    monkeypatch.setattr(_flex, "_engine", lambda function, compiled: engine(function, True))
    engine.cache_clear()
    found = []
    for length in (150, 280, 300, 410):
        q, k, v = (x.requires_grad_() for x in drawn(*[(1, 1, length, 8)] * 3, dtype=torch.float32))
        keys = (torch.arange(length) > 2)[None, None, None]
        call = AttentionCall(q, k, v, keys, scaling=0.3, causal=True, window=100, softcap=2.0)
        _flex.flex_output(call, 1.5).sum().backward()
        with torch.no_grad():
            _flex.flex_output(call, 1.5)
        found.append(graphs.frame_count)
    engine.cache_clear()
    # The mask's blocks, the first bound, Newton's steps, the output with and without gradients; twice for lengths.
    assert found[0] <= 5
    assert found[1] <= 10
    assert found[1:] == [found[1]] * 3


@torch.no_grad()
def test_models_of_several_softcaps_are_served_in_one_process():
    """From torch 2.15 on a second number becomes a symbol, which FlexAttention refuses in a score function."""
    q, k, v = drawn(*[(1, 2, 6, 8)] * 3)
    for softcap in (2.0, 3.0, 5.0):
        ours, _ = sparse_attention(module(), q, k, v, None, softcap=softcap)
        expected, _ = sparse_attention(module(impl="torch"), q, k, v, None, softcap=softcap)
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
def test_supports_of_all_several_and_one(size):
    q, k, v = drawn((1, 1, 6, 4), (1, 1, 30, 4), (1, 1, 30, 3))
    expected = entmax(q @ k.mT * size, 1.5, impl="torch") @ v
    torch.testing.assert_close(flex_entmax_attention(q, k, v, scale=size), expected, atol=1e-10, rtol=0)


def module(name="entmax15", impl="flex"):
    site = nn.Module()
    site.__dict__[SITE] = AttentionSite("attn", "decoder", MapConfig.parse(name, "attn"), impl=impl)
    return site.eval()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["causal", "boolean", "additive", "blocks"])
def test_a_call_of_the_interface_is_what_torch_makes_of_it(kind):
    q, k, v, bias = drawn((2, 4, 6, 8), (2, 2, 9, 8), (2, 2, 9, 8), (1, 4, 6, 9))
    mask = torch.ones(2, 1, 6, 9, dtype=torch.bool).tril(3)
    mask[0, ..., :2], mask[1, :, 1] = False, False
    settings = {"softcap": 3.0, "position_bias": bias}
    if kind == "causal":
        given, mask, settings = None, None, {"is_causal": True, "scaling": 2.0}
    elif kind == "blocks":
        given = torch_flex.create_block_mask(lambda b, h, i, j: mask[b, 0, i, j], 2, None, 6, 9, device="cpu")
    else:
        given = mask = (
            mask
            if kind == "boolean"
            else bias[:, :1].expand(mask.shape).masked_fill(~mask, torch.finfo(bias.dtype).min)
        )
    ours, weights = sparse_attention(module(), q, k, v, given, **settings)
    expected, _ = sparse_attention(module(impl="torch"), q, k, v, mask, **settings)
    assert weights is None
    assert ours.is_contiguous()
    torch.testing.assert_close(ours, expected, atol=1e-10, rtol=0)


@torch.no_grad()
def test_a_model_predicts_as_with_torch():
    model = sparsify(tiny_model("llama"), attn="entmax15").double()
    inputs = labelled(model)
    logits = []
    for impl in ("flex", "torch"):
        set_impl(model, impl)
        logits.append(model(**inputs).logits)
    torch.testing.assert_close(*logits, atol=1e-9, rtol=0)


def test_what_flex_attention_cannot_serve_is_refused_by_name():
    q, k, v = drawn((2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8))
    q.requires_grad_()
    for name, arguments, message in (
        ("entmax15", {}, "is torch's FlexAttention, which gives no gradients on the CPU"),
        ({"name": "entmax", "alpha": 1.05}, {}, r"takes alpha in \[1.1, 2.0\], was 1.05"),
        ({"name": "entmax", "alpha": [1.2, 1.5, 1.5, 1.5]}, {}, "takes one number for alpha, was one per head"),
        ("entmax15", {"s_aux": torch.zeros(4)}, "has no sinks, and some were given"),
        ("sparsegen_lin", {}, "computes maps of the entmax family, not sparsegen_lin"),
    ):
        with pytest.raises(ValueError, match=f'impl="flex" {message}; use hf_sparse.attention.set_impl'):
            sparse_attention(module(name), q, k, v, **arguments)
    with pytest.raises(ValueError, match=r"alpha must be a number from 1.1 to 2, was 2.5"):
        flex_entmax_attention(q, k, v, 2.5)
    blocks = torch_flex.create_block_mask(visible, None, None, 6, 6, device="cpu")
    with pytest.raises(
        ValueError, match=r'attention_mask was a BlockMask, .* use hf_sparse.attention.set_impl\(model, "flex"\)'
    ):
        sparse_attention(module(impl="torch"), q, k, v, blocks)
    watched = module()
    looking = watched.__dict__[SITE].observers.set(SupportCount())
    with (
        looking,
        pytest.raises(ValueError, match=r'impl="flex" does not count supports \(observe\) under a BlockMask'),
    ):
        sparse_attention(watched, q, k, v, blocks)
