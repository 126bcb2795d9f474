"""Attention whose weights do not sum to one: in models, through masks and caches, saved, counted, refused."""

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM, OpenAIGPTConfig, OpenAIGPTLMHeadModel

from hf_sparse import calibrate, from_pretrained, sparse_config, sparsify
from hf_sparse.attention import attention_sites, observe, set_impl
from hf_sparse.attention.site import trial
from hf_sparse.config import SparseConfig
from hf_sparse.functional import MAPS, sigmoid
from hf_sparse.model.doctor import cache_difference, causality
from hf_sparse.viz import plot_attention
from tests.conversion.data import loader
from tests.tiny_inline_models import INLINE, INLINE_CAUSAL, inputs_of, tiny_inline_model
from tests.tiny_models import ARCHITECTURES, CAUSAL, attentions, spread, tiny_model, tokens

NAMES = sorted(name for name, known in MAPS.items() if known.any_scores and not known.normalized)
EVERY = pytest.mark.parametrize("name", NAMES)


def choice(name):
    return {"name": name, "tau": 0.1} if name == "alpha_relu" else name


def scores_and_weights(model, **inputs):
    """The scores of every call of attention, and its weights."""
    scores = []
    with trial(model, {}, lambda site, module, z: scores.append(z)):
        return scores, attentions(model, **inputs)


def gpt_oss():
    config = GptOssConfig(
        vocab_size=23, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=2, num_experts_per_tok=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return spread(GptOssForCausalLM(config).eval())


@EVERY
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_are_the_map_of_the_scores(architecture, name):
    model = sparsify(tiny_model(architecture), attn=choice(name))
    inputs = {"input_ids": tokens()}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(seed=3)
    scores, weights = scores_and_weights(model, **inputs)
    settings = {"alpha": 1.5, "tau": 0.1} if name == "alpha_relu" else {}
    expected = [MAPS[name].function(z, **settings) for z in scores]
    assert len(weights) == len(expected) > 1
    for found in weights:
        assert any(found.shape == p.shape and torch.equal(found, p) for p in expected)


@EVERY
@pytest.mark.parametrize("architecture", CAUSAL)
def test_no_later_token_counts_and_decoding_with_a_cache_equals_one_call(architecture, name):
    model = sparsify(tiny_model(architecture), attn=choice(name))
    inputs = {"input_ids": tokens()}
    assert causality(model, inputs) < 1e-5
    assert cache_difference(model, inputs) < 1e-4


@EVERY
@pytest.mark.parametrize("architecture", ["llama", "bert"])
def test_padding_changes_nothing(architecture, name):
    model = sparsify(tiny_model(architecture), attn=choice(name))
    ids = tokens(rows=1)
    padded, mask = (torch.nn.functional.pad(x, (0, 3)) for x in (ids, torch.ones_like(ids)))
    alone, among = model(ids).logits, model(padded, attention_mask=mask).logits[:, : ids.shape[1]]
    torch.testing.assert_close(among, alone, atol=1e-5, rtol=1e-5)


@EVERY
def test_saved_and_loaded_it_answers_alike(name, tmp_path):
    model = sparsify(tiny_model("llama"), attn=choice(name))
    model.save_pretrained(tmp_path)
    again = from_pretrained(tmp_path)
    assert sparse_config(again) == sparse_config(model)
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)


@EVERY
def test_it_trains(name):
    model = sparsify(tiny_model("llama"), attn=choice(name)).train()
    model(tokens(), labels=tokens()).loss.backward()
    gradients = [p.grad for module, _ in attention_sites(model) for p in module.parameters()]
    assert all(bool(g.isfinite().all()) for g in gradients)
    assert any(bool(g.any()) for g in gradients)


def test_a_bias_for_each_head():
    biases = [-1.0, 0.0, 1.0, 2.0]
    model = sparsify(tiny_model("llama"), attn={"name": "sigmoid", "bias": biases})
    (z, *_), (weights, *_) = scores_and_weights(model, input_ids=tokens())
    for head, bias in enumerate(biases):
        torch.testing.assert_close(weights[:, head], sigmoid(z[:, head], bias))


def test_rows_that_see_keys_and_weigh_none_count_as_rows():
    model = sparsify(tiny_model("llama"), attn={"name": "alpha_relu", "tau": 1e6})
    with observe(model) as counts:
        attentions(model, input_ids=tokens())
    for count in counts.values():
        assert (count.rows, count.nonzero) == (2 * 4 * 7, 0)
        assert (count.support_size, count.zero_rate) == (0.0, 1.0)


def test_softmax1_is_softmax_beside_sinks_of_score_zero():
    zero, none = gpt_oss(), gpt_oss()
    for model, score in ((zero, 0.0), (none, -1e4)):
        for layer in model.model.layers:
            layer.self_attn.sinks.data.fill_(score)
    expected = sparsify(zero, attn="softmax")(tokens()).logits
    torch.testing.assert_close(sparsify(none, attn="softmax1")(tokens()).logits, expected, atol=1e-4, rtol=1e-4)


@EVERY
def test_sinks_beside_weights_that_do_not_compete_are_refused(name):
    model = gpt_oss()
    before = model(tokens()).logits
    if not MAPS[name].elementwise:
        sparsify(model, attn=choice(name))
        return
    with pytest.raises(
        ValueError, match=rf"has attention sinks, which take nothing from the weights of {name}.*attn=None"
    ):
        sparsify(model, attn=choice(name))
    assert torch.equal(model(tokens()).logits, before)


@EVERY
@pytest.mark.parametrize("impl", ["cpp", "triton", "flex", "adasplash"])
def test_backends_without_weights_refuse_them_by_name(name, impl):
    model = sparsify(tiny_model("llama"), attn=choice(name))
    set_impl(model, impl)
    with pytest.raises(ValueError, match=f'impl="{impl}" computes maps of the entmax family, not {name}'):
        model(tokens())


@EVERY
def test_calibrate_refuses_them_by_name(name):
    model = sparsify(tiny_model("llama"), attn=choice(name))
    with pytest.raises(ValueError, match=f"which sum to one, and those of {name} do not"):
        calibrate(model, loader(model), progress=False)


@EVERY
def test_heads_refuse_maps_that_give_no_distribution(name):
    if name == "alpha_relu":
        SparseConfig.parse(head=choice(name))
        return
    with pytest.raises(
        ValueError, match=f"'{name}' weighs attention and gives no distribution over classes, so it has"
    ):
        SparseConfig.parse(head=name)


def test_alpha_relu_needs_a_number_for_its_threshold():
    with pytest.raises(
        ValueError, match=r'attn: tau="auto" is estimated from the weights of a head; for attention give'
    ):
        SparseConfig.parse(attn="alpha_relu")


def test_pictures_show_weights_above_one():
    figure = plot_attention(torch.tensor([[3.0, 0.0]]), ["a", "b"], ["q"])
    assert figure.axes[0].images[0].get_clim() == (0.0, 3.0)


COUNTING = ["relu_over_n", "sigmoid", "softpick"]


@pytest.mark.parametrize("name", COUNTING)
@pytest.mark.parametrize("architecture", [architecture for architecture in INLINE if architecture != "mpt"])
def test_masks_of_large_negative_numbers_hide_keys_inside_modules_too(architecture, name):
    model = sparsify(tiny_inline_model(architecture), attn=name)
    inputs = inputs_of(model)
    padded = {key: x[1:] for key, x in inputs.items()}
    alone = {key: x if key.startswith("decoder") else x[:, :6] for key, x in padded.items()}
    with torch.no_grad():
        among = model(**padded).logits
        expected = model(**alone).logits
    torch.testing.assert_close(among[:, : expected.shape[1]], expected, atol=1e-4, rtol=1e-4)
    assert architecture not in INLINE_CAUSAL or cache_difference(model, {"input_ids": tokens()}) < 1e-4


def test_masked_by_minus_ten_thousand_is_masked():
    """OpenAI GPT hides later tokens so: a key that counted would halve the weights of the first query."""
    config = OpenAIGPTConfig(vocab_size=23, n_positions=16, n_embd=32, n_layer=1, n_head=2)
    torch.manual_seed(0)
    model = sparsify(spread(OpenAIGPTLMHeadModel(config).eval()), attn="sigmoid")
    (z,), (weights,) = scores_and_weights(model, input_ids=tokens(length=2))
    assert z[:, :, 0, 1].max() < -9000
    torch.testing.assert_close(weights[:, :, 0, 0], torch.sigmoid(z[:, :, 0, 0]))


@pytest.mark.parametrize("name", ["relu_over_n", "sparsegen_exp"])
def test_scores_that_are_right_up_to_a_constant_need_a_map_that_ignores_it(name):
    model = tiny_inline_model("mpt")
    with pytest.raises(ValueError, match=f"MptAttention at .* a constant changes the weights of {name}, or"):
        sparsify(model, attn=name)
    sparsify(model, attn="entmax15")


@torch.no_grad()
def test_length_scales_count_visible_keys_inside_modules_too():
    model = sparsify(tiny_inline_model("xlnet"), attn={"name": "entmax15", "beta": 1.0})
    inputs = inputs_of(model)
    padded, alone = ({key: x[1:, :length] for key, x in inputs.items()} for length in (8, 6))
    torch.testing.assert_close(model(**padded).logits[:, :6], model(**alone).logits, atol=1e-4, rtol=1e-4)
