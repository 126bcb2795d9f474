"""What adasplash is handed and what it is never asked, by a module in place of the package, which needs a GPU."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from transformers.masking_utils import sliding_window_causal_mask_function

from hf_sparse.attention.backends import _adasplash
from hf_sparse.attention.interface import sparse_attention
from hf_sparse.attention.mask import pattern_mask
from hf_sparse.attention.site import SITE, AttentionSite
from hf_sparse.config import MapConfig
from hf_sparse.functional import entmax

BATCH, HEADS, TOKENS, DIM = 2, 2, 70, 16


def module(name="entmax15"):
    site = nn.Module()
    site.__dict__[SITE] = AttentionSite("attn", "decoder", MapConfig.parse(name, "attn"), impl="adasplash")
    return site.eval()


def qkv(heads=HEADS, key_heads=HEADS, tokens=TOKENS, keys=None, dim=DIM, dtype=torch.float16):
    generator = torch.Generator().manual_seed(0)
    shapes = ((heads, tokens), (key_heads, keys or tokens), (key_heads, keys or tokens))
    # Transformers' layout, which is not contiguous.
    return [torch.randn(BATCH, n, h, dim, generator=generator).transpose(1, 2).to(dtype) for h, n in shapes]


@pytest.fixture
def calls(monkeypatch):
    """The keyword arguments of the calls of a package that computes what adasplash says it does."""
    found = []

    def adasplash(q, k, v, alpha=1.5, is_causal=True, varlen=None, niter=None):
        assert all(x.is_contiguous() for x in (q, k, v))
        assert varlen is not None or q.shape[2] & (q.shape[2] - 1) == 0
        found.append({"alpha": alpha, "is_causal": is_causal, "varlen": varlen, "niter": niter})
        groups, num_tokens = q.shape[1] // k.shape[1], q.shape[2]
        z = (q.double() @ k.double().repeat_interleave(groups, 1).mT) * q.shape[3] ** -0.5
        position = torch.arange(num_tokens)
        inside = position < (torch.tensor([num_tokens]) if varlen is None else varlen)[:, None]
        hidden = ~inside[:, None, None] | (is_causal & (position > position[:, None]))
        out = entmax(z.masked_fill(hidden, -torch.inf), alpha) @ v.double().repeat_interleave(groups, 1)
        return (out * inside[:, None, :, None]).to(q.dtype)

    package = ModuleType("adasplash")
    package.adasplash = adasplash
    monkeypatch.setitem(sys.modules, "adasplash", package)
    monkeypatch.setattr(_adasplash, "_unavailable", lambda device: None)
    return found


def padded(causal):
    visible = torch.ones(BATCH, 1, TOKENS, TOKENS, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    visible[0, ..., 50:] = False
    return visible


def known_by_pattern(first, last):
    """The mask of a causal model for keys of which the first sequence has those from ``first`` to ``last``."""
    keys = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    keys[0, :first], keys[0, last:] = False, False
    return pattern_mask(BATCH, TOKENS, TOKENS, attention_mask=keys, dtype=torch.float16)


@pytest.mark.parametrize(
    ("mask", "options", "is_causal", "varlen"),
    [
        (None, {"is_causal": True}, True, [70, 70]),
        (None, {}, False, [70, 70]),
        (padded(True), {}, True, [50, 70]),
        (padded(False), {}, False, [50, 70]),
        (torch.where(padded(True), 0.0, torch.finfo(torch.float16).min).half(), {}, True, [50, 70]),
        (known_by_pattern(0, 50), {}, True, [50, 70]),
    ],
)
def test_masks_become_a_flag_and_lengths(calls, mask, options, is_causal, varlen):
    q, k, v = qkv()
    ours, weights = sparse_attention(module(), q, k, v, mask, **options)
    assert weights is None
    (call,) = calls
    assert (call["alpha"], call["is_causal"], call["varlen"].tolist()) == (1.5, is_causal, varlen)
    site = module()
    site.__dict__[SITE].impl = "torch"
    expected, _ = sparse_attention(
        site, *(x.double() for x in (q, k, v)), padded(is_causal) if mask is not None else None, **options
    )
    for row, length in enumerate(varlen):
        torch.testing.assert_close(ours[row, :length].double(), expected[row, :length], atol=2e-3, rtol=0)


def test_powers_of_two_need_no_lengths_and_alpha_is_handed_on(calls):
    sparse_attention(module("sparsemax"), *qkv(tokens=64), is_causal=True)
    assert calls == [{"alpha": 2.0, "is_causal": True, "varlen": None, "niter": None}]


def test_keys_are_shared_between_heads_at_alpha_15_with_a_causal_mask_only(calls):
    sparse_attention(module(), *qkv(key_heads=1), is_causal=True)
    assert len(calls) == 1
    for name, causal in (("sparsemax", True), ("entmax15", False)):
        with pytest.raises(
            ValueError, match=r"shares keys between heads only at alpha = 1.5 with a causal mask, were 2"
        ):
            sparse_attention(module(name), *qkv(key_heads=1), is_causal=causal)


@pytest.mark.parametrize("temperature", [1.0, 3.0, [3.0, 0.5]], ids=str)
def test_queries_carry_another_scale_and_the_temperature(calls, temperature):
    q, k, v = qkv()
    name = {"name": "entmax15", "temperature": temperature}
    ours, _ = sparse_attention(module(name), q, k, v, is_causal=True, scaling=0.7)
    assert len(calls) == 1
    site = module(name)
    site.__dict__[SITE].impl = "torch"
    expected, _ = sparse_attention(site, *(x.double() for x in (q, k, v)), is_causal=True, scaling=0.7)
    torch.testing.assert_close(ours.double(), expected, atol=5e-3, rtol=0)


def windowed():
    """The mask of a causal model whose queries see eight keys."""
    window = sliding_window_causal_mask_function(8)
    return pattern_mask(BATCH, TOKENS, TOKENS, mask_function=window, local_size=8, dtype=torch.float16)


def left_padded():
    visible = padded(True)
    visible[1, ..., :3] = False
    return visible


@pytest.mark.parametrize(
    ("tensors", "arguments", "message"),
    [
        (qkv(dtype=torch.float32), {}, "takes queries, keys and values of torch.float16 or torch.bfloat16, were"),
        (qkv(dim=24), {}, "takes heads of 16, 32, 64, 128, 256 dimensions, were 24 and 24"),
        (qkv(tokens=64, keys=70), {}, "takes as many queries as keys, at least 64, were 64 and 70"),
        (qkv(tokens=40), {}, "takes as many queries as keys, at least 64, were 40 and 40"),
        (qkv(), {"softcap": 3.0}, "does not support softcap, which was given"),
        (qkv(), {"position_bias": torch.zeros(1, 2, 70, 70)}, "does not support position_bias, which was given"),
        (qkv(), {"s_aux": torch.zeros(2)}, "does not support sinks, which was given"),
        (qkv(), {"attention_mask": left_padded()}, "takes masks that hide later keys, padding on the right, or both"),
        (qkv(), {"attention_mask": known_by_pattern(3, 70)}, "takes masks that hide later keys, padding on the right"),
        (qkv(), {"attention_mask": windowed()}, "takes masks that hide later keys, padding on the right"),
        (qkv(), {"attention_mask": padded(True) * 0.5}, "takes masks that hide later keys, padding on the right"),
    ],
)
def test_what_adasplash_does_not_support_is_refused_by_name(calls, tensors, arguments, message):
    with pytest.raises(ValueError, match=f'impl="adasplash" {message}.*; use hf_sparse.attention.set_impl'):
        sparse_attention(module(), *tensors, **arguments)
    assert calls == []


def test_gradients_of_keys_alone_are_refused(calls):
    q, k, v = qkv()
    with pytest.raises(ValueError, match="fails where keys or values need a gradient and queries do not"):
        sparse_attention(module(), q, k.requires_grad_(), v)
    sparse_attention(module(), q.requires_grad_(), k, v)
    assert len(calls) == 1


def test_softmax_is_none_of_its_maps(calls):
    with pytest.raises(ValueError, match=r"takes alpha in \(1, 2\], was 1; use hf_sparse.attention.set_impl"):
        sparse_attention(module({"name": "entmax", "alpha": 1.0}), *qkv())


def test_without_the_package_or_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(_adasplash, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs the package adasplash, which is not installed: pip install adasplash"):
        sparse_attention(module(), *qkv())
    monkeypatch.setattr(_adasplash, "find_spec", lambda name: object())
    with pytest.raises(ValueError, match="runs on NVIDIA GPUs; the queries were on cpu"):
        sparse_attention(module(), *qkv())
