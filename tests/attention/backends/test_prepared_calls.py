"""What kernels do not know and queries carry: temperatures, and the factor by the number of keys."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.masking_utils import sliding_window_causal_mask_function

from hf_sparse import sparsify
from hf_sparse.attention import set_impl
from hf_sparse.attention._call import AttentionCall
from hf_sparse.attention._scores import biased_scores, with_head_sinks
from hf_sparse.attention.backends import _triton
from hf_sparse.attention.interface import sparse_attention
from hf_sparse.attention.mask import pattern_mask
from hf_sparse.attention.site import SITE
from tests.attention.backends.test_cpp_backend import module, needs_compiler
from tests.kernels.devices import DEVICE, needs_triton
from tests.tiny_models import labelled, tiny_model
from tests.tolerances import GRADIENT

BY_HEAD = [0.5, 3.0, 1.0, 8.0]
NUMBER = {"name": "entmax15", "temperature": 3.0}
HEADS = {"name": "entmax", "alpha": 1.3, "temperature": BY_HEAD}
LEARNED = {"name": "entmax15", "temperature": {"learned": BY_HEAD}}


def qkv(length=9, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    return [
        2 * torch.randn(2, 4, length, 8, generator=generator, dtype=torch.float64).to(device, dtype) for _ in "qkv"
    ]


def scored(call):
    """The scores of a call and of its sinks, as torch makes them."""
    scores = biased_scores(call.scaling * call.query @ call.key.mT, call.mask, call.softcap, call.position_bias)
    return scores if call.s_aux is None else with_head_sinks(scores, call.s_aux)


def by_head(temperature):
    return temperature.view(-1, 1, 1) if torch.is_tensor(temperature) else temperature


@settings(max_examples=60, deadline=None)
@given(
    heads=st.booleans(),
    temperature=st.floats(0.05, 40),
    softcap=st.sampled_from([None, 1.5]),
    has_bias=st.booleans(),
    mask=st.sampled_from([None, "bool", "lowest", "added"]),
    has_sinks=st.booleans(),
)
def test_the_scores_of_a_divided_call_are_those_over_the_temperature(
    heads, temperature, softcap, has_bias, mask, has_sinks
):
    q, k, v = qkv(dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    visible = torch.rand(2, 1, 9, 9, generator=generator) > 0.3
    masks = {
        "bool": visible,
        "lowest": torch.zeros(2, 1, 9, 9).double().masked_fill(~visible, torch.finfo(torch.float64).min),
        "added": torch.where(visible, torch.randn(2, 1, 9, 9, generator=generator), -torch.inf).double(),
    }
    call = AttentionCall(
        q,
        k,
        v,
        masks.get(mask),
        scaling=0.35,
        softcap=None if heads else softcap,
        position_bias=torch.randn(1, 4, 9, 9, generator=generator).double() if has_bias else None,
        s_aux=torch.randn(4, generator=generator).double() if has_sinks else None,
        temperature=temperature * torch.tensor(BY_HEAD).double() if heads else temperature,
    )
    divided = call.divided()
    assert divided.temperature == 1
    torch.testing.assert_close(scored(divided), scored(call) / by_head(call.temperature), atol=1e-12, rtol=1e-12)


def test_a_divided_call_keeps_its_dtypes_and_what_hides_keys():
    q, k, v = qkv(dtype=torch.bfloat16)
    hidden = torch.full((1, 1, 1, 9), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16)
    call = AttentionCall(q, k, v, hidden, 1.0, s_aux=torch.ones(4).bfloat16(), temperature=torch.tensor(BY_HEAD))
    divided = call.divided()
    assert {x.dtype for x in (divided.query, divided.mask, divided.s_aux)} == {torch.bfloat16}
    assert torch.equal(divided.mask.amax(), hidden.amax())
    assert torch.equal(divided.query, (q.float() / torch.tensor(BY_HEAD).view(-1, 1, 1)).bfloat16())


@needs_triton
@pytest.mark.parametrize("name", [NUMBER, HEADS, LEARNED], ids=["number", "heads", "learned"])
def test_triton_attends_under_a_temperature_and_learns_it(name):
    """A soft cap and a bias under one temperature; sinks and a mask under any."""
    q, k, v = (x.requires_grad_() for x in qkv(device=DEVICE))
    generator = torch.Generator().manual_seed(1)
    options = {"s_aux": torch.randn(4, generator=generator).to(DEVICE).requires_grad_(), "is_causal": True}
    if name is NUMBER:
        options |= {"softcap": 2.0, "position_bias": torch.randn(1, 4, 9, 9, generator=generator).to(DEVICE)}
    found = []
    for impl, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        site = module(name, impl).to(DEVICE)
        wide = {key: x.to(dtype) if torch.is_tensor(x) else x for key, x in options.items()}
        out, _ = sparse_attention(site, *(x.to(dtype) for x in (q, k, v)), **wide)
        wanted = [q, k, v, options["s_aux"], *site.parameters()]
        found.append([out.double(), *torch.autograd.grad(out.square().sum(), wanted)])
    assert len(found[0]) == 5 + (name is LEARNED)
    for ours, expected in zip(*found, strict=True):
        size = expected.abs().max()
        assert float((ours - expected).abs().max() / size) < GRADIENT[torch.float32]


@needs_triton
def test_a_model_of_a_temperature_trains_in_the_kernels_of_a_gpu(monkeypatch):
    """What ``"temperature": "auto"`` sets no longer sends attention to torch."""
    model = sparsify(tiny_model("llama").to(DEVICE), attn={"name": "entmax15", "temperature": "auto"})
    inputs = {key: value.to(DEVICE) for key, value in labelled(model).items()}
    calls = []
    attend = _triton.triton_attention
    monkeypatch.setattr(_triton, "triton_attention", lambda *x, **options: calls.append(1) or attend(*x, **options))
    losses = []
    for impl in ("triton", "torch"):
        set_impl(model, impl)
        losses.append(model(**inputs).loss)
    assert len(calls) == model.config.num_hidden_layers
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", [NUMBER, HEADS], ids=["number", "heads"])
def test_flex_attention_attends_under_a_temperature(name):
    q, k, v = qkv()
    options = {"softcap": 2.0} if name is NUMBER else {}
    (found, _), (expected, _) = (
        sparse_attention(module(name, impl), q, k, v, **options) for impl in ("flex", "torch")
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@needs_compiler
@pytest.mark.parametrize("masked", [False, True])
def test_the_kernel_for_cpus_learns_a_temperature(masked):
    found = []
    for impl, dtype in (("cpp", torch.float32), ("torch", torch.float64)):
        q, k, v = (x.requires_grad_() for x in qkv(length=40, dtype=dtype))
        site = module(LEARNED, impl).to(dtype)
        sinks = torch.tensor([0.5, -1.0, 0.0, 2.0], dtype=dtype, requires_grad=True)
        mask = (torch.arange(40) > 3)[None, None, None] if masked else None
        out, weights = sparse_attention(site, q, k, v, mask, s_aux=sinks)
        assert (weights is None) == (impl == "cpp")
        slopes = torch.autograd.grad(out.square().sum(), [q, k, v, sinks, *site.parameters()], create_graph=True)
        (second,) = torch.autograd.grad(slopes[-1].sum(), site.parameters())
        found.append([x.double() for x in (out, *slopes, second)])
    for ours, expected in zip(*found, strict=True):
        assert float((ours - expected).abs().max() / expected.abs().max()) < GRADIENT[torch.float32]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"softcap": 2.0},
            "divides scores by a temperature for each head, or one that is learned, only without a soft",
        ),
        (
            {"position_bias": torch.zeros(1, 4, 40, 40)},
            "gives no gradient to a temperature, which is learned, through what is added to scores",
        ),
        (
            {"attention_mask": torch.ones(1, 1, 40, 40)},
            "gives no gradient to a temperature, which is learned, through what is added to scores",
        ),
    ],
    ids=["softcap", "bias", "mask"],
)
def test_what_cannot_be_divided_beforehand_is_named_and_auto_computes_it_in_torch(options, message):
    q, k, v = qkv(length=40)
    site = module(LEARNED, "cpp")
    arguments = {"attention_mask": None} | options
    with pytest.raises(ValueError, match=f'impl="cpp" {message}'):
        sparse_attention(site, q, k, v, **arguments)
    site.__dict__[SITE].impl = "auto"
    out, weights = sparse_attention(site, q, k, v, **arguments)
    assert weights is not None
    assert torch.autograd.grad(out.square().sum(), site.parameters())[0].abs().max() > 0


SCALED = {
    "fixed": {"name": "entmax15", "delta": 0.3, "beta": 0.8, "gamma": 0.7, "temperature": 2.0},
    "heads": {"name": "entmax", "alpha": 1.3, "beta": [0.1, 0.4, 0.0, 1.0], "temperature": BY_HEAD},
    "learned": {
        "name": "entmax15",
        "delta": {"learned": [1.0, 0.5, 1.0, 2.0]},
        "beta": {"learned": [0.5, 0.1, 1.0, 0.3]},
        "temperature": {"learned": BY_HEAD},
    },
}


def hiding(kind):
    """Arguments that hide keys of 40 from 40 queries, or from the last 33."""
    padding = (torch.arange(40) > torch.tensor([[3], [0]]))[:, None, None]
    matrix = torch.rand(2, 1, 40, 40, generator=torch.Generator().manual_seed(2)) > 0.4
    return {
        "all": {},
        "causal": {"is_causal": True},
        "padded": {"attention_mask": padding},
        "lowest": {"attention_mask": torch.zeros(2, 1, 1, 40).masked_fill(~padding, torch.finfo(torch.float32).min)},
        "queries": {"attention_mask": matrix[:, :, :, :1]},
        "matrix": {"attention_mask": matrix | torch.eye(40, dtype=torch.bool)},
        "pattern": {"attention_mask": pattern_mask(2, 40, 40, attention_mask=padding[:, 0, 0], dtype=torch.float32)},
        "window": {
            "attention_mask": pattern_mask(
                2, 40, 40, mask_function=sliding_window_causal_mask_function(8), local_size=8,
                attention_mask=padding[:, 0, 0], dtype=torch.float32,
            )
        },
    }[kind]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("kind", ["all", "causal", "padded", "lowest", "queries", "matrix", "pattern", "window"])
@pytest.mark.parametrize("name", SCALED)
def test_queries_carry_the_factor_by_the_number_of_keys(name, kind):
    found = []
    for impl, dtype in (("cpp", torch.float32), ("torch", torch.float64)):
        q, k, v = (x.requires_grad_() for x in qkv(length=40, dtype=dtype))
        site = module(SCALED[name], impl).to(dtype)
        out, weights = sparse_attention(site, q / 4, k, v, **{"attention_mask": None} | hiding(kind))
        assert (weights is None) == (impl == "cpp")
        slopes = torch.autograd.grad(out.square().sum(), [q, k, v, *site.parameters()])
        found.append([x.double() for x in (out, *slopes)])
    assert len(found[0]) == 4 + 3 * (name == "learned")
    for ours, expected in zip(*found, strict=True):
        assert float((ours - expected).abs().max() / expected.abs().max()) < GRADIENT[torch.float32]


@needs_compiler
@torch.no_grad()
def test_the_last_queries_of_a_cache_count_all_keys_they_see():
    q, k, v = qkv(length=40)
    for options in ({"is_causal": True}, {}):
        answers = [
            sparse_attention(module(SCALED["fixed"], impl), q[:, :, -33:], k, v, None, **options)[0]
            for impl in ("cpp", "torch")
        ]
        torch.testing.assert_close(*answers, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 2.0},
        {"position_bias": torch.zeros(1, 4, 40, 40)},
        {"s_aux": torch.zeros(4)},
        {"attention_mask": torch.ones(1, 1, 40, 40)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_factor_by_length_beside_what_is_added_to_scores_is_left_to_torch(options):
    q, k, v = qkv(length=40)
    site = module(SCALED["fixed"], "cpp")
    arguments = {"attention_mask": None} | options
    with pytest.raises(ValueError, match=r"scales scores by the number of keys \(delta, beta, gamma\) only without a"):
        sparse_attention(site, q, k, v, **arguments)
    site.__dict__[SITE].impl = "auto"
    assert sparse_attention(site, q, k, v, **arguments)[1] is not None
