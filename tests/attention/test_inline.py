"""Attention with a softmax of its own: replaced there, and nowhere else."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn
from transformers import (
    BigBirdConfig,
    BigBirdForMaskedLM,
    ConvBertConfig,
    ConvBertForMaskedLM,
    IBertConfig,
    IBertForMaskedLM,
    NystromformerConfig,
    NystromformerForMaskedLM,
    SiglipVisionConfig,
    SiglipVisionModel,
    SwiftFormerConfig,
    SwiftFormerForImageClassification,
    WavLMConfig,
    WavLMModel,
)

import hf_sparse.functional as F
from hf_sparse import from_pretrained, is_sparse, sparsify, unsparsify
from hf_sparse.attention.inline import InlineAttention, divert, restore
from hf_sparse.attention.site import SITE, AttentionSite, attention_sites, observe
from hf_sparse.cache_name import CACHE
from hf_sparse.config import MapConfig
from tests.tiny_inline_models import INLINE, INLINE_CAUSAL, inputs_of, tiny_inline_model
from tests.tiny_models import DECODER, TOKENS, attentions, spread, tiny_model, tokens


@pytest.mark.parametrize("name", INLINE)
@torch.no_grad()
def test_unsparsify_restores_modules_and_logits_bitwise(name):
    model = tiny_inline_model(name)
    inputs = inputs_of(model)
    before, classes = model(**inputs).logits, [type(part) for part in model.modules()]
    config, implementation = model.config.to_dict(), model.config._attn_implementation
    sparsify(model, attn="entmax15")
    assert not torch.equal(model(**inputs).logits, before)
    unsparsify(model)
    assert torch.equal(model(**inputs).logits, before)
    assert [type(part) for part in model.modules()] == classes
    assert model.config.to_dict() == config
    assert model.config._attn_implementation == implementation
    assert not attention_sites(model)


@pytest.mark.parametrize("name", INLINE)
@torch.no_grad()
def test_alpha_one_is_the_models_own_eager_attention(name):
    model = tiny_inline_model(name)
    inputs = inputs_of(model)
    model.config._attn_implementation_internal = "eager"
    eager = model(**inputs).logits
    sparse = sparsify(model, attn={"name": "entmax", "alpha": 1.0})(**inputs).logits
    torch.testing.assert_close(sparse[0], eager[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sparse[1, :-2], eager[1, :-2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", INLINE)
@torch.no_grad()
def test_every_call_is_counted_and_has_exact_zeros(name):
    model = sparsify(tiny_inline_model(name), attn="sparsemax")
    inputs = inputs_of(model)
    with observe(model) as counts:
        model(**inputs)
    assert counts
    assert all(count.calls for count in counts.values())
    # Sparsemax leaves fewer keys than a softmax with the same mask: that one keeps every key it sees.
    unsparsify(model)
    sparsify(model, attn="softmax")
    with observe(model) as dense:
        model(**inputs)
    assert all(counts[path].nonzero < dense[path].nonzero for path in counts)


@pytest.mark.parametrize("name", ["bloom", "deberta_v2", "falcon", "falcon_alibi", "gptj", "mpt", "xlnet"])
@torch.no_grad()
def test_returned_weights_are_the_sparse_ones(name):
    model = sparsify(tiny_inline_model(name), attn="entmax15")
    for weights in attentions(model, **inputs_of(model)):
        mass = weights.sum(-1)
        assert (weights == 0).any()
        # DeBERTa hides everything from queries that are padding.
        torch.testing.assert_close(mass[1, :, :-2], torch.ones_like(mass[1, :, :-2]))
        torch.testing.assert_close(mass[0], torch.ones_like(mass[0]))


@pytest.mark.parametrize("name", INLINE_CAUSAL)
@torch.no_grad()
def test_changing_a_later_token_does_not_move_earlier_logits(name):
    model = sparsify(tiny_inline_model(name), attn="sparsemax")
    assert {site.kind for _, site in attention_sites(model)} == {"decoder"}
    ids = tokens()
    changed = ids.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 20 + 3
    one, other = model(ids).logits, model(changed).logits
    torch.testing.assert_close(one[:, :4], other[:, :4])
    assert not torch.allclose(one[:, 4:], other[:, 4:])


@pytest.mark.parametrize("name", INLINE_CAUSAL)
@torch.no_grad()
def test_cached_decoding_equals_prefill(name):
    model = sparsify(tiny_inline_model(name), attn="entmax15").double()  # in float32 both are off by 2e-5
    ids = tokens()
    cache, steps = None, []
    for position in range(ids.shape[1]):
        output = model(ids[:, position : position + 1], **{CACHE: cache}, use_cache=True)
        cache = output[CACHE]
        steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), model(ids).logits, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("name", ["falcon", "led", "squeezebert"])
@torch.no_grad()
def test_copies_are_sparse_and_independent(name, duplicate):
    model = sparsify(tiny_inline_model(name), attn="entmax15")
    inputs = inputs_of(model)
    twin, expected = duplicate(model), model(**inputs).logits
    unsparsify(model)
    assert torch.equal(twin(**inputs).logits, expected)
    assert torch.equal(unsparsify(twin)(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("name", INLINE)
@torch.no_grad()
def test_a_checkpoint_comes_back_sparse(name, tmp_path):
    dense = tiny_inline_model(name)
    inputs = inputs_of(dense)
    implementation = dense.config._attn_implementation
    model = sparsify(copy.deepcopy(dense), attn="entmax15")
    expected = model(**inputs).logits
    model.save_pretrained(tmp_path)
    for again in (from_pretrained(tmp_path), type(dense).from_pretrained(tmp_path)):
        assert torch.equal(again(**inputs).logits, expected)
        assert torch.equal(unsparsify(again)(**inputs).logits, dense(**inputs).logits)
        assert again.config._attn_implementation == implementation


@torch.no_grad()
def test_models_with_different_maps_and_dense_models_live_side_by_side():
    dense, one, other = (tiny_inline_model("bloom") for _ in range(3))
    ids = tokens()
    reference = dense(ids).logits
    sparsify(one, attn="sparsemax")
    sparsify(other, attn="entmax15")
    assert torch.equal(dense(ids).logits, reference)
    assert not torch.allclose(one(ids).logits, other(ids).logits)
    assert torch.equal(unsparsify(one)(ids).logits, reference)
    assert is_sparse(other)


@torch.no_grad()
def test_kinds_left_out_keep_softmax_and_are_counted():
    model = sparsify(tiny_inline_model("led"), attn={"cross": "sparsemax"})
    with observe(model) as counts:
        model(**inputs_of(model))
    rates = {
        kind: max(counts[s.path].zero_rate for _, s in attention_sites(model) if s.kind == kind)
        for kind in ("decoder", "cross")
    }
    assert rates["decoder"] == pytest.approx(0.4)  # what the causal mask hides of 5 x 5
    assert rates["cross"] > 0.25


@torch.no_grad()
def test_compiled_in_one_graph_it_is_still_sparse():
    model = sparsify(tiny_inline_model("bloom"), attn="sparsemax")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    ids = tokens()
    torch.testing.assert_close(compiled(ids).logits, model(ids).logits)


def test_gradients_are_those_of_the_map():
    z = scores(2, 3, 5).requires_grad_()
    (diverted(lambda: torch.softmax(z, -1)) * torch.arange(5.0)).sum().backward()
    expected = z.detach().clone().requires_grad_()
    (F.sparsemax(expected) * torch.arange(5.0)).sum().backward()
    torch.testing.assert_close(z.grad, expected.grad)


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(8, 4, bias=False)

    def forward(self, x):
        return self.weight(x).softmax(-1)


class RoutedAttention(nn.Module):
    """Attention with its softmax in a module, an inner attention and a router."""

    def __init__(self, inner=None):
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)
        self.router = Router()
        self.inner = inner

    def forward(self, x, mask=None):
        scores = x @ x.mT if mask is None else x @ x.mT + mask
        mixed = self.softmax(scores) @ x
        return self.inner(mixed) if self.inner else mixed, self.router(x)


def site(name="sparsemax", path="attention"):
    return AttentionSite(path, "encoder", MapConfig.parse(name, "attn"), inline=True)


def scores(*shape):
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_a_router_inside_an_attention_module_is_untouched():
    attention, x = RoutedAttention(), scores(2, 5, 8)
    dense, routes = attention(x)
    attention.__dict__[SITE] = site()
    divert(attention)
    sparse, sparse_routes = attention(x)
    torch.testing.assert_close(sparse, F.sparsemax(x @ x.mT) @ x)
    assert torch.equal(sparse_routes, routes)
    assert type(attention.router).__name__ == "Router"
    restore(attention)
    assert torch.equal(attention(x)[0], dense)
    assert not any(isinstance(part, InlineAttention) for part in attention.modules())


def test_attention_inside_attention_follows_its_own_site():
    attention, x = RoutedAttention(RoutedAttention()), scores(2, 5, 8)
    attention.__dict__[SITE], attention.inner.__dict__[SITE] = site(), site("softmax", "attention.inner")
    divert(attention)
    mixed = F.sparsemax(x @ x.mT) @ x
    torch.testing.assert_close(attention(x)[0][0], torch.softmax(mixed @ mixed.mT, -1) @ mixed)


class WrappedAttention(nn.Module):
    """Another module's attention behind hooks, which could compute softmax itself, as TransformerLens' can."""

    def __init__(self, inner, own=False):
        super().__init__()
        self.inner, self.own = inner, own

    def forward(self, hidden_states, **kwargs):
        if self.own:
            hidden_states = hidden_states + torch.softmax(hidden_states, dim=-1)
        return self.inner(hidden_states, **kwargs)


def wrapped(own=False):
    model = tiny_model("llama")
    for layer in model.model.layers:
        layer.self_attn = WrappedAttention(layer.self_attn, own)
    return model


def test_what_wraps_attention_is_not_attention_of_its_own():
    maps = {"decoder": ["sparsemax", {"name": "entmax", "alpha": 1.3}]}
    expected = sparsify(tiny_model("llama"), attn=maps)
    model, ids = sparsify(wrapped(), attn=maps), tokens(2)
    assert {module.self_attn.inner.__dict__[SITE].layer for module in model.model.layers} == {0, 1}
    assert not any(isinstance(part, InlineAttention) for part in expected.modules())
    with torch.no_grad():
        assert torch.equal(model(ids).logits, expected(ids).logits)
        assert torch.equal(unsparsify(model)(ids).logits, tiny_model("llama")(ids).logits)


def test_a_wrapper_that_computes_softmax_is_replaced_with_what_it_wraps():
    """Nobody can tell from outside that these are no weights; nothing is silently dense."""
    model, ids = sparsify(wrapped(own=True), attn="entmax15"), tokens(2)
    with torch.no_grad(), observe(model) as counts:
        model(ids)
    assert len(counts) == 4
    assert all(count.calls for count in counts.values())


class OneCallAttention(nn.Module):
    """Attention that makes one call."""

    def forward(self, call):
        return call()


def diverted(call, name="sparsemax"):
    module = OneCallAttention().eval()
    module.__dict__[SITE] = site(name)
    divert(module)
    return module(call)


@pytest.mark.parametrize(
    "call",
    [
        lambda z: torch.softmax(z, -1),
        lambda z: torch.softmax(z, dim=2),
        lambda z: z.softmax(dim=-1),
        lambda z: nn.functional.softmax(z, dim=-1),
        lambda z: nn.functional.softmax(z, -1, 3, z.dtype),
        lambda z: torch.special.softmax(z, -1),
        nn.Softmax(dim=-1),
    ],
)
def test_every_spelling_of_softmax_is_replaced(call):
    z = scores(2, 3, 5)
    assert torch.equal(diverted(lambda: call(z)), F.sparsemax(z))


def test_the_dtype_asked_for_is_honoured():
    z = scores(2, 3, 5).bfloat16()
    p = diverted(lambda: nn.functional.softmax(z, dim=-1, dtype=torch.float32))
    assert p.dtype == torch.float32
    assert torch.equal(p, F.sparsemax(z.float()))


@pytest.mark.parametrize("dim", [0, 1, -2, -3])
def test_softmax_over_another_axis_is_untouched(dim):
    z = scores(2, 3, 1)
    assert torch.equal(diverted(lambda: torch.softmax(z, dim=dim)), torch.softmax(z, dim=dim))


def test_the_last_axis_may_be_any():
    z = scores(3, 5)
    assert torch.equal(diverted(lambda: torch.softmax(z, dim=1)), F.sparsemax(z))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scores_at_the_bottom_of_their_range_are_masked(dtype):
    z = scores(2, 5).to(dtype)
    lowest = torch.finfo(dtype).min
    p = diverted(lambda: torch.softmax(torch.stack([z[0], z[1] + lowest, z[1] + lowest / 2]), -1), "softmax")
    assert (p[1:] == 0).all()
    torch.testing.assert_close(p[0].sum(), torch.ones((), dtype=dtype))


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"scale": 0.9}, {"attn_mask": "bool"}, {"attn_mask": "float"}], ids=str
)
def test_dot_product_attention_is_torchs_own_with_another_map(options):
    q, k, v = (scores(2, 4, 5, 8) for _ in range(3))
    visible = torch.ones(5, 5, dtype=torch.bool).tril(1)
    masks = {"bool": visible, "float": torch.zeros(5, 5).masked_fill(~visible, torch.finfo(torch.float32).min)}
    options = {name: masks.get(value, value) for name, value in options.items()}
    attend = lambda: nn.functional.scaled_dot_product_attention(q, k, v, **options)  # noqa: E731
    torch.testing.assert_close(diverted(attend, "softmax"), attend())
    assert not torch.allclose(diverted(attend), attend())


@pytest.mark.parametrize(
    ("queries", "keys"), [((2, 4, 3, 8), (2, 4, 5, 8)), ((2, 4, 5, 8), (2, 1, 5, 8)), ((3, 8), (5, 8))], ids=str
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_dot_product_attention_of_other_shapes_is_torchs_own(queries, keys, is_causal):
    """The first query sees the first key alone, however many keys there are."""
    q, k = scores(*queries), scores(*keys)
    attend = lambda: nn.functional.scaled_dot_product_attention(q, k, k, is_causal=is_causal)  # noqa: E731
    torch.testing.assert_close(diverted(attend, "softmax"), attend())


def test_dot_product_attention_shares_heads_and_drops_weights():
    q, k = scores(2, 4, 5, 8), scores(2, 2, 5, 8)
    attend = nn.functional.scaled_dot_product_attention
    torch.testing.assert_close(
        diverted(lambda: attend(q, k, k, enable_gqa=True), "softmax"), attend(q, k, k, enable_gqa=True)
    )
    with pytest.raises(ValueError, match=r"4 heads share the keys of 2 only with enable_gqa=True"):
        diverted(lambda: attend(q, k, k), "softmax")
    dropped = diverted(lambda: attend(q, q, q, dropout_p=0.5))
    assert not torch.allclose(dropped, diverted(lambda: attend(q, q, q)))


def test_the_signature_is_the_modules_own():
    model = tiny_inline_model("gptj")
    attention = model.transformer.h[0].attn
    signature = inspect.signature(attention.forward)
    sparsify(model, attn="entmax15")
    assert inspect.signature(attention.forward) == signature


def masked_lm(config_class, model_class, **settings):
    torch.manual_seed(0)
    return spread(model_class(config_class(vocab_size=23, **TOKENS, **DECODER, **settings)).eval())


@torch.no_grad()
def test_normalized_convolution_kernels_inside_attention_stay_dense():
    model = masked_lm(ConvBertConfig, ConvBertForMaskedLM, embedding_size=32, conv_kernel_size=3)
    reference = model(tokens()).logits
    assert is_sparse(sparsify(model, attn="softmax"))
    torch.testing.assert_close(model(tokens()).logits, reference)


REFUSED = [
    (BigBirdConfig, BigBirdForMaskedLM, {}, "BigBirdBlockSparseAttention at .* replaces its attention modules"),
    (NystromformerConfig, NystromformerForMaskedLM, {}, "NystromformerSelfAttention at .* three softmax factors"),
    (IBertConfig, IBertForMaskedLM, {"quant_mode": True}, "IBertSelfAttention at .* integers .* quant_mode=False"),
]


@pytest.mark.parametrize(("config_class", "model_class", "settings", "message"), REFUSED)
def test_what_cannot_be_reached_is_refused_by_name(config_class, model_class, settings, message):
    model = masked_lm(config_class, model_class, **settings)
    with pytest.raises(ValueError, match=message):
        sparsify(model, attn="entmax15")
    assert not is_sparse(model)
    assert not any(isinstance(part, InlineAttention) for part in model.modules())


def test_softmax_over_a_single_score_is_refused():
    model = SwiftFormerForImageClassification(
        SwiftFormerConfig(image_size=32, depths=[1, 1, 1, 1], embed_dims=[8, 8, 8, 8])
    )
    with pytest.raises(ValueError, match="SwiftFormerForImageClassification is over a single score"):
        sparsify(model, attn="entmax15", example={"pixel_values": torch.rand(1, 3, 64, 64)})


def test_an_example_of_padding_alone_is_refused_as_such():
    ids = torch.tensor([[5, 6, 7]])
    with pytest.raises(ValueError, match="no query in the attention of GPT2LMHeadModel sees a key, since the masks"):
        sparsify(tiny_model("gpt2"), "entmax15", example={"input_ids": ids, "attention_mask": torch.zeros_like(ids)})


def test_full_attention_of_big_bird_is_reached():
    assert is_sparse(
        sparsify(masked_lm(BigBirdConfig, BigBirdForMaskedLM, attention_type="original_full"), "entmax15")
    )


# ---- torch's own multi-head attention ------------------------------------------------------------------------------


def multi_head(map_name=None, **options):
    """``nn.MultiheadAttention`` of 16 columns and 2 heads, sparse where a map is given."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 2, **options).eval()
    for parameter in module.parameters():
        parameter.data.normal_(0, 0.7)
    if map_name is not None:
        module.__dict__[SITE] = AttentionSite("attn", "encoder", MapConfig.parse(map_name, "attn"), inline=True)
        divert(module)
    return module


MULTI_HEAD = {
    "plain": ({}, {}),
    "batch first": ({"batch_first": True}, {}),
    "no weights": ({}, {"need_weights": False}),
    "of each head": ({}, {"average_attn_weights": False}),
    "padding": ({}, {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])}),
    "padding, no weights": (
        {},
        {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2]), "need_weights": False},
    ),
    "causal": ({}, {"attn_mask": torch.ones(5, 5).triu(1).bool()}),
    "causal, no weights": (
        {},
        {"attn_mask": torch.ones(5, 5).triu(1).bool(), "is_causal": True, "need_weights": False},
    ),
    "added mask": ({}, {"attn_mask": torch.linspace(-1, 1, 25).view(5, 5)}),
    "a key of its own": ({"add_bias_kv": True}, {}),
    "zero attention": ({"add_zero_attn": True}, {}),
}


@pytest.mark.parametrize(("built", "called"), MULTI_HEAD.values(), ids=MULTI_HEAD)
def test_multi_head_attention_of_torch_at_alpha_one_is_its_own(built, called):
    x = torch.randn(2, 5, 16) if built.get("batch_first") else torch.randn(5, 2, 16)
    expected = multi_head(**built)(x, x, x, **called)
    found = multi_head({"name": "entmax", "alpha": 1.0}, **built)(x, x, x, **called)
    for own, other in zip(found, expected):
        assert (own is None) == (other is None)
        if own is not None:
            torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_head_attention_of_torch_weighs_by_its_map(need_weights):
    module, x = multi_head({"name": "entmax", "alpha": [1.5, 2.0]}), torch.randn(5, 3, 16)
    q, k, v = (
        part.view(5, 3, 2, 8).permute(1, 2, 0, 3)
        for part in nn.functional.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    )
    scores = q @ k.mT / 8**0.5
    weights = torch.stack([F.entmax15(scores[:, 0]), F.sparsemax(scores[:, 1])], 1)
    expected = module.out_proj((weights @ v).permute(2, 0, 1, 3).flatten(2))
    found, own = module(x, x, x, need_weights=need_weights, average_attn_weights=False)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (weights == 0).any()
    if need_weights:
        torch.testing.assert_close(own, weights, atol=5e-6, rtol=0)
    restore(module)
    dense = multi_head()
    assert torch.equal(module(x, x, x)[0], dense(x, x, x)[0])


def test_arguments_that_multi_head_attention_of_torch_is_not_given_are_its_own():
    module, x = multi_head("entmax15"), torch.randn(5, 2, 16)
    given = (16, 2, module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0)
    call = lambda: nn.functional.multi_head_attention_forward(  # noqa: E731
        x, x, x, *given, module.out_proj.weight, module.out_proj.bias
    )
    torch.testing.assert_close(diverted(call, "softmax"), call(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_head_attention_of_torch_drops_weights_in_training(need_weights):
    module, x = multi_head("entmax15", dropout=0.5), torch.randn(5, 2, 16)
    kept = module(x, x, x, need_weights=need_weights)[0]
    assert torch.equal(module(x, x, x, need_weights=need_weights)[0], kept)
    assert not torch.allclose(module.train()(x, x, x, need_weights=need_weights)[0], kept)


def test_gradients_of_multi_head_attention_of_torch():
    module = multi_head("entmax15").double().train()
    x = torch.randn(4, 1, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: module(x, x, x)[0], x)


def test_models_around_torchs_multi_head_attention_are_sparse_in_it():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    siglip = SiglipVisionModel(SiglipVisionConfig(image_size=16, patch_size=4, **sizes))
    convolutions = {"conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (4, 4)}
    position = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    wavlm = WavLMModel(WavLMConfig(**sizes, **convolutions, **position))
    for model, inputs, path in (
        (siglip, {"pixel_values": torch.randn(1, 3, 16, 16)}, "head.attention"),
        (wavlm, {"input_values": torch.randn(1, 400)}, "encoder.layers.0.attention"),
    ):
        spread(model.eval())
        sparsify(model, attn="sparsemax", example=inputs)
        with torch.no_grad(), observe(model) as counts:
            model(**inputs)
        assert counts[path].nonzero < counts[path].keys
        unsparsify(model)
        assert not attention_sites(model)
