"""Models whose attention the C++ kernel computes give what torch gives; calls it cannot serve are named."""

import itertools
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import OPTConfig, OPTForCausalLM, SiglipVisionConfig, SiglipVisionModel

from hf_sparse import sparsify
from hf_sparse.attention import observe, set_impl
from hf_sparse.attention.backends import _cpp
from hf_sparse.attention.interface import sparse_attention
from hf_sparse.attention.site import SITE, AttentionSite, add_learned
from hf_sparse.config import MapConfig
from hf_sparse.kernels import Scores, cpp_attention_forward
from tests.tiny_models import labelled, tiny_model, tokens
from tests.tolerances import GRADIENT

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)


def module(name="entmax15", impl="cpp", **attributes):
    site = nn.Module()
    site.__dict__[SITE] = AttentionSite("attn", "decoder", MapConfig.parse(name, "attn"), impl=impl)
    for key, value in attributes.items():
        setattr(site, key, value)
    add_learned(site, site.__dict__[SITE])
    return site.eval()


def qkv(heads=4, length=33, dtype=torch.float32):
    return list(torch.randn(3, 2, heads, length, 8, generator=torch.Generator().manual_seed(0)).to(dtype) * 2)


def results(model, inputs):
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(found, expected, tolerance=GRADIENT[torch.float32]):
    (loss, gradients), (expected_loss, wanted) = found, expected
    torch.testing.assert_close(loss.double(), expected_loss.double(), atol=1e-5, rtol=1e-5)
    assert gradients.keys() == wanted.keys()
    size = max(gradient.abs().max() for gradient in wanted.values())
    for key, gradient in gradients.items():
        assert float((gradient.double() - wanted[key]).abs().max() / size) < tolerance, key


# Grouped heads; fused projections; cross-attention; softcap and window.
@needs_compiler
@pytest.mark.parametrize("name", ["llama", "gpt2", "bart", "gemma2"])
@pytest.mark.parametrize("padded", [False, True])
def test_models_train_as_with_torch_in_float64(name, padded):
    learned = {"name": "entmax", "alpha": {"learned": 1.4}}
    warm = {"name": "entmax15", "temperature": 0.7}
    model = sparsify(tiny_model(name), attn={"llama": learned, "gpt2": warm}.get(name, "entmax15"))
    inputs = labelled(model)
    if padded:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][0, :2] = 0
    found = {}
    for impl, dtype in (("cpp", torch.float32), ("torch", torch.float64)):
        set_impl(model.to(dtype), impl)
        found[impl] = results(model, inputs)
    assert_same(found["cpp"], found["torch"], 3e-5)
    assert any("sparse_alpha" in key for key in found["cpp"][1]) == (name == "llama")


@needs_compiler
def test_t5_predicts_with_its_position_bias_and_is_told_that_the_bias_gets_no_gradient():
    model = sparsify(tiny_model("t5"), attn="sparsemax")
    inputs = labelled(model)
    with torch.no_grad():
        expected = model(**inputs).loss
        set_impl(model, "cpp")
        torch.testing.assert_close(model(**inputs).loss, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match='impl="cpp" gives no gradient to position_bias, which asks for one'):
        model(**inputs)


@needs_compiler
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_computes_the_same_again(reentrant):
    model = sparsify(tiny_model("llama"), attn="entmax15").train()
    inputs = labelled(model)
    set_impl(model, "cpp")
    expected = results(model, inputs)
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    assert_same(results(model, inputs), expected, 1e-6)


@needs_compiler
def test_under_autocast_attention_is_in_its_dtype():
    q, k, v = qkv()
    with torch.autocast("cpu", torch.bfloat16):
        ours, _ = sparse_attention(module(), q, k.bfloat16(), v)
    assert ours.dtype == torch.bfloat16
    expected, _ = sparse_attention(module(), q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert torch.equal(ours, expected)


@needs_compiler
def test_float64_stays_under_autocast():
    q, k, v = (x.double() for x in qkv())
    with torch.autocast("cpu", torch.bfloat16):
        ours, _ = sparse_attention(module(impl="auto"), q, k, v)
    expected, _ = sparse_attention(module(impl="torch"), q, k, v)
    assert torch.equal(ours, expected)


@needs_compiler
def test_outputs_and_gradients_of_random_calls_are_those_of_torch():
    @settings(max_examples=40, deadline=None)
    @given(
        queries=st.integers(1, 70),
        keys=st.integers(1, 70),
        key_heads=st.sampled_from([1, 2]),
        group=st.sampled_from([1, 2]),
        dim=st.sampled_from([4, 16, 24]),
        # Above 1.5 the gradient jumps where a score meets the threshold, and no two roundings jump together.
        alpha=st.sampled_from([1.1, 1.25, 1.5, [1.2]]),
        temperature=st.sampled_from([1.0, 0.5, [2.0]]),
        size=st.sampled_from([0.1, 1.0, 4.0]),
        mask=st.sampled_from([None, "boolean", "additive", "keys"]),
        softcap=st.sampled_from([None, 3.0]),
        sinks=st.booleans(),
        bias=st.booleans(),
        is_causal=st.booleans(),
        seed=st.integers(0, 99),
    )
    def compare(
        queries, keys, key_heads, group, dim, alpha, temperature, size, mask, softcap, sinks, bias, is_causal, seed
    ):
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape):
            return torch.randn(shape, generator=generator)

        heads = key_heads * group
        leaves = [drawn(2, heads, queries, dim) * size, drawn(2, key_heads, keys, dim), drawn(2, key_heads, keys, dim)]
        upstream, given = drawn(2, queries, heads, dim), {"softcap": softcap, "is_causal": is_causal}
        if mask is not None:
            visible = drawn(2, 1, 1 if mask == "keys" else queries, keys) > -0.5
            given["attention_mask"] = (
                torch.where(visible, 0.3, torch.finfo(torch.float32).min) if mask == "additive" else visible
            )
        if bias:
            given["position_bias"] = drawn(1, heads, queries, keys)
        if sinks:
            leaves.append(drawn(heads))
        alpha = [alpha[0] + 0.1 * i for i in range(heads)] if isinstance(alpha, list) else alpha
        if isinstance(temperature, list):
            temperature = [temperature[0] / (i + 1) for i in range(heads)]
        name = {"name": "entmax", "alpha": alpha, "temperature": temperature}
        found = []
        for impl in ("cpp", "torch"):
            own = [x.clone().requires_grad_() for x in leaves]
            out, _ = sparse_attention(module(name, impl), *own[:3], **given, s_aux=own[3] if sinks else None)
            found.append((out.detach(), *torch.autograd.grad(out, own, upstream)))
        for ours, theirs in zip(*found):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)

    compare()


@needs_compiler
def test_second_derivatives_are_those_of_torch():
    sinks, found = torch.tensor([1.0, -1.0, 0.0, 0.5]), []
    for impl, dtype in (("cpp", torch.float32), ("torch", torch.float64)):
        q, k, v = (x.requires_grad_() for x in qkv(length=7, dtype=dtype))
        given = module({"name": "entmax", "alpha": 1.5, "temperature": [2.0, 1.0, 0.5, 3.0]}, impl)
        out, _ = sparse_attention(given, q, k, v, s_aux=sinks.to(dtype), softcap=5.0, is_causal=True)
        (slope,) = torch.autograd.grad(out.pow(3).sum(), q, create_graph=True)
        found.append((slope.detach(), *torch.autograd.grad(slope.square().sum(), (q, k, v))))
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours.double(), theirs, atol=2e-3, rtol=2e-3)


@needs_compiler
def test_several_gradients_at_once_are_those_of_torch():
    q, k, v = qkv(length=7)
    found = []
    for impl in ("cpp", "torch"):
        attend = lambda q: sparse_attention(module(impl=impl), q, k, v, is_causal=True)[0][:, -1, 0]  # noqa: B023, E731
        found.append(torch.autograd.functional.jacobian(attend, q, vectorize=True))
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)


@needs_compiler
def test_a_window_and_its_second_derivative():
    model = sparsify(tiny_model("gemma2"), attn="entmax15").eval()
    found = []
    for impl, dtype in (("cpp", torch.float32), ("torch", torch.float64)):
        set_impl(model.to(dtype), impl)
        weight = model.model.layers[0].self_attn.q_proj.weight
        loss = model(**labelled(model)).loss
        (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), weight)[0].double())
    size = found[1].abs().max()
    torch.testing.assert_close(found[0] / size, found[1] / size, atol=2e-3, rtol=0)


@needs_compiler
def test_auto_takes_the_kernel_for_many_queries_and_for_few_and_returns_weights_where_they_are_asked_for():
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, 128, 16, generator=generator)
    sparse_attention(module(), q, k, v)  # builds the kernel
    expected, weights = sparse_attention(module(impl="torch"), q, k, v, is_causal=True)
    assert weights is not None
    for queries in (q, q[:, :, -4:], q[:, :, -1:]):  # of a whole sequence, and of decoding steps
        ours, weights = sparse_attention(module(impl="auto"), queries, k, v, is_causal=True)
        assert weights is None
        torch.testing.assert_close(ours, expected[:, -queries.shape[2] :], atol=1e-5, rtol=1e-5)
        assert sparse_attention(module(impl="auto"), queries, k, v, output_attentions=True)[1] is not None
    assert sparse_attention(module(impl="auto"), *(x[:, :, :20] for x in (q, k, v)))[1] is not None
    wanted = q[:, :, -1:].requires_grad_()
    assert sparse_attention(module(impl="auto"), wanted, k, v)[1] is not None  # a step of few queries has no gradient


@pytest.mark.parametrize("can_build", [pytest.param(True, marks=needs_compiler), False])
def test_many_small_calls_without_gradients_build_the_kernel_together(monkeypatch, can_build):
    built, calls = [], 5

    def cpp_available(build):
        built.append(build)
        return build and can_build

    monkeypatch.setattr(_cpp, "cpp_available", cpp_available)
    monkeypatch.setattr(_cpp, "_MANY_CALLS", calls)
    monkeypatch.setattr(_cpp, "_calls_without_kernel", itertools.count(1))
    q, k, v = qkv(length=4)
    with torch.no_grad():
        taken = [sparse_attention(module(impl="auto"), q[:, :, -1:], k, v)[1] is None for _ in range(calls - 1)]
        assert not any(taken)
        assert not any(built)
        for _ in range(2):
            taken = sparse_attention(module(impl="auto"), q[:, :, -1:], k, v)[1] is None
            assert (taken, built[-1]) == (can_build, True)


@needs_compiler
def test_a_model_under_auto_trains_through_the_kernel_and_supports_are_counted_beside_it(monkeypatch):
    monkeypatch.setattr(_cpp, "_FEWEST_QUERIES", 1)
    monkeypatch.setattr(_cpp, "_FEWEST_SCORES", 1)
    model = sparsify(tiny_model("llama"), attn="entmax15")
    inputs = labelled(model)
    calls = []
    forward = _cpp.cpp_attention_forward
    monkeypatch.setattr(_cpp, "cpp_attention_forward", lambda *x: calls.append(1) or forward(*x))
    found = results(model, inputs)
    assert len(calls) == model.config.num_hidden_layers
    set_impl(model, "torch")
    assert_same(found, results(model, inputs))
    set_impl(model, "auto")
    calls.clear()
    with observe(model) as counts, torch.no_grad():
        model(**inputs)
    assert all(count.support_size > 0 for count in counts.values())
    assert len(calls) == model.config.num_hidden_layers


def test_flops_are_counted_as_in_the_dense_model():
    model, ids = tiny_model("llama"), tokens(16, 64)
    model.set_attn_implementation("eager")
    counted = []
    for each in (model, sparsify(tiny_model("llama"), attn="entmax15")):
        with FlopCounterMode(display=False) as counter:
            each(ids, labels=ids).loss.backward()
        counted.append(counter.get_total_flops())
    assert counted[0] == counted[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ({"name": "alpha_relu", "tau": 0.5}, "computes maps of the entmax family, not alpha_relu"),
        ({"name": "entmax", "alpha": 1.01}, r"takes alpha in \[1.02, 2.0\], was 1.01 at least and 1.01 at most"),
        (
            {"name": "entmax", "alpha": [1.5, 1.5, 1.5, 2.5]},
            r"takes alpha in \[1.02, 2.0\], was 1.5 at least and 2.5 at most",
        ),
    ],
    ids=str,
)
def test_maps_that_the_kernel_does_not_compute_are_named(name, message):
    with pytest.raises(ValueError, match=f'impl="cpp" {message}'):
        sparse_attention(module(name), *qkv())


@needs_compiler
@pytest.mark.parametrize(
    ("name", "attn"), [("llama", {"decoder": ["entmax15", None]}), ("bart", {"cross": "entmax15"})], ids=str
)
@torch.no_grad()
def test_softmax_that_was_kept_stays_with_torch(name, attn):
    model = sparsify(tiny_model(name), attn=attn)
    inputs = labelled(model)
    expected = model(**inputs).logits
    set_impl(model, "cpp")
    torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-5, rtol=1e-4)


@needs_compiler
@torch.no_grad()
def test_a_learned_temperature_is_served_where_nothing_learns():
    q, k, v = qkv()
    name = {"name": "entmax15", "temperature": {"learned": [1.0, 2.0, 0.5, 3.0]}}
    (found, _), (expected, _) = (sparse_attention(module(name, impl), q, k, v) for impl in ("cpp", "torch"))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_calls_that_the_kernel_cannot_serve_are_named():
    q, k, v = qkv()
    training = module()
    training.train()
    bias = torch.zeros(1, 4, 33, 33, requires_grad=True)
    for arguments, options, message in (
        ((training, q, k, v), {"dropout": 0.1}, "does not drop weights, and dropout was 0.1"),
        ((module(), q, k, v), {"output_attentions": True}, "does not return weights, which were asked for"),
        ((module(), q, k, v), {"position_bias": bias}, "gives no gradient to position_bias, which asks for one"),
        ((module(), q.double(), k.double(), v.double()), {}, "takes queries, keys and values of one dtype"),
        ((module(), q, k, v), {"sinks": torch.zeros(2, 4, 33, 1)}, "takes a sink for each head"),
    ):
        with pytest.raises(ValueError, match=f'impl="cpp" {message}'):
            sparse_attention(*arguments, **options)


def test_what_traces_or_transforms_the_call_is_refused_and_auto_computes_in_torch(monkeypatch):
    monkeypatch.setattr(_cpp, "_FEWEST_SCORES", 1)
    q, k, v = qkv()
    message = 'impl="cpp" cannot be traced, compiled or transformed'

    def attend(impl):
        site = module(impl=impl)
        return lambda q: sparse_attention(site, q, k, v)[0]

    with pytest.raises(ValueError, match=message):
        torch.func.grad(lambda q: attend("cpp")(q).sum())(q)
    expected = attend("torch")(q)
    compiled = torch.compile(attend("auto"), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(q), expected)
    slope = torch.func.grad(lambda q: attend("auto")(q).square().sum())(q)
    torch.testing.assert_close(slope, torch.func.grad(lambda q: attend("torch")(q).square().sum())(q))


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
KEEPERS = {  # whose modules do not hand on that weights were asked for
    "gpt2": lambda: tiny_model("gpt2"),
    "opt": lambda: OPTForCausalLM(OPTConfig(vocab_size=23, ffn_dim=16, word_embed_proj_dim=16, **SIZES)),
    "siglip": lambda: SiglipVisionModel(
        SiglipVisionConfig(image_size=8, patch_size=2, intermediate_size=16, vision_use_head=False, **SIZES)
    ),
}


@needs_compiler
@pytest.mark.parametrize("name", KEEPERS)
def test_weights_that_a_module_keeps_silent_about_are_returned_or_refused(name, monkeypatch):
    model = sparsify(KEEPERS[name]().eval(), attn="entmax15")
    generator = torch.Generator().manual_seed(0)
    inputs = (
        {"pixel_values": torch.randn(2, 3, 8, 8, generator=generator)}
        if name == "siglip"
        else {"input_ids": torch.randint(3, 23, (2, 16), generator=generator)}
    )
    expected = model(**inputs, output_attentions=True).attentions
    assert len(expected) == 2
    monkeypatch.setattr(_cpp, "_FEWEST_QUERIES", 1)
    monkeypatch.setattr(_cpp, "_FEWEST_SCORES", 1)
    for found, wanted in zip(model(**inputs, output_attentions=True).attentions, expected, strict=True):
        assert torch.equal(found, wanted)
    set_impl(model, "cpp")
    with pytest.raises(ValueError, match="does not return weights, which were asked for"):
        model(**inputs, output_attentions=True)


@needs_compiler
@pytest.mark.parametrize("hidden", [torch.nan, torch.inf])
@pytest.mark.parametrize("by_query", [False, True])
def test_a_hidden_key_may_hold_anything(by_query, hidden):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 64, 16, generator=generator) for _ in range(3))
    mask = torch.ones(1, 1, 64 if by_query else 1, 64, dtype=torch.bool)
    mask[..., :8] = False
    if by_query:
        mask[..., 0, 20:] = False
    scores = Scores(torch.full((2,), 1.5), 0.0, 0.25, False, None, None, None, mask.expand(1, 1, 64, 64), None)
    expected = cpp_attention_forward(q, k, v, scores)[0]
    k[:, :, :8] = hidden
    assert torch.equal(cpp_attention_forward(q, k, v, scores)[0], expected)
