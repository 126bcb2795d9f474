"""One call makes a model sparse, another undoes it, and nothing else notices."""

import copy
import functools
import pickle

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BigBirdConfig,
    BigBirdForMaskedLM,
    DPRConfig,
    DPRQuestionEncoder,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    RagConfig,
    RagTokenForGeneration,
    RwkvConfig,
    RwkvForCausalLM,
)
from transformers.modeling_outputs import CausalLMOutput

import hf_sparse.functional as F
from hf_sparse import compare, from_pretrained, is_sparse, save_pretrained, sparse_config, sparsify, unsparsify
from hf_sparse.attention.interface import NAME
from hf_sparse.attention.site import attention_sites, observe
from hf_sparse.cache_name import CACHE
from hf_sparse.model.dense_blocks import dense_attention, dense_head
from tests.sweep.architectures import build
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import ARCHITECTURES, CAUSAL, PAD, SEQ2SEQS, attentions, labelled, tiny_model, tokens

SETTINGS = [
    {"attn": "entmax15"},
    {"head": "sparsemax"},
    {"attn": {"name": "entmax", "alpha": 1.33}, "head": "alpha_relu"},
]


@pytest.mark.parametrize(
    ("build", "name", "layers"),
    [(tiny_model, "llama", "model.layers"), (tiny_inline_model, "falcon", "transformer.h")],
)
@torch.no_grad()
def test_layers_that_were_copied_in_a_sparse_model_are_dense_again_too(build, name, layers):
    """A copied layer has a copy of its configuration, which no other module of the model reads."""

    def twice_as_deep(model):
        own = model.get_submodule(layers)
        own.extend([copy.deepcopy(layer) for layer in own])
        for number, layer in enumerate(own):
            attention = layer.self_attn if hasattr(layer, "self_attn") else layer.self_attention
            attention.layer_idx = number
        model.config.num_hidden_layers = len(own)
        return model

    expected = twice_as_deep(build(name))(tokens()).logits
    model = twice_as_deep(sparsify(build(name), attn="entmax15"))
    assert not torch.equal(model(tokens()).logits, expected)
    assert torch.equal(unsparsify(model)(tokens()).logits, expected)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("settings", SETTINGS, ids=["attn", "head", "both"])
@torch.no_grad()
def test_unsparsify_restores_logits_bitwise(name, settings):
    model = tiny_model(name)
    inputs = labelled(model)
    before, dense_class, config = model(**inputs), type(model), model.config.to_dict()
    assert sparsify(model, **settings) is model
    assert type(model) is not dense_class
    assert type(model).__name__ == dense_class.__name__
    sparse = model(**inputs)
    assert not torch.equal(sparse.loss, before.loss)
    assert unsparsify(model) is model
    after = model(**inputs)
    assert torch.equal(after.logits, before.logits)
    assert torch.equal(after.loss, before.loss)
    assert type(model) is dense_class
    assert model.config.to_dict() == config
    assert not attention_sites(model)


def test_unsparsify_refuses_to_take_away_a_class_that_was_given_since():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    own = type(model)
    model.__class__ = type("Mine", (own,), {})
    with pytest.raises(ValueError, match=r"LlamaForCausalLM was given the class Mine .* give its own class back"):
        unsparsify(model)
    assert is_sparse(model)
    model.__class__ = own
    assert not is_sparse(unsparsify(model))


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_every_attention_has_exact_zeros_and_rows_that_sum_to_one(name):
    model = sparsify(tiny_model(name), attn="entmax15")
    for weights in attentions(model, **labelled(model)):
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        assert (weights == 0).any(-1).float().mean() > 0.1


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_alpha_one_is_the_models_own_eager_attention(name):
    model = tiny_model(name)
    inputs = labelled(model)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, -2:] = 0
    model.set_attn_implementation("eager")
    eager = model(**inputs).logits
    sparse = sparsify(model, attn={"name": "entmax", "alpha": 1.0})(**inputs).logits
    torch.testing.assert_close(sparse[0], eager[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sparse[1, :-2], eager[1, :-2], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_dense_attention_cannot_come_back_unnoticed():
    model = sparsify(tiny_model("bart"), attn="entmax15")
    before = model(tokens()).logits
    for part in (model, model.model, model.model.encoder):
        with pytest.raises(ValueError, match="'sdpa' would take this model's sparse attention away; call unsparsify"):
            part.set_attn_implementation("sdpa")
        part.set_attn_implementation(NAME)  # what it has
    model.set_attn_implementation({"": NAME})
    assert torch.equal(model(tokens()).logits, before)
    model.config._attn_implementation = "eager"
    for part in (model, model.model, model.model.encoder):
        with pytest.raises(RuntimeError, match="'eager' would take"):
            part(tokens())
    model.config._attn_implementation = NAME
    assert torch.equal(model(tokens()).logits, before)


@pytest.mark.parametrize("name", ["llama", "bart"])
@torch.no_grad()
def test_a_refused_model_of_the_same_configuration_leaves_a_way_back_to_sparse_attention(name):
    """Transformers writes ``attn_implementation`` into the configuration that it is given, before it builds."""
    model = sparsify(tiny_model(name), attn="entmax15")
    before = model(tokens()).logits
    with pytest.raises(ValueError, match="would be dense with attn_implementation='eager'"):
        type(model)._from_config(model.config, attn_implementation="eager")
    with pytest.raises(RuntimeError, match=r"or model.set_attn_implementation\('hf_sparse'\) to keep it where"):
        model(tokens())
    model.set_attn_implementation(NAME)
    assert torch.equal(model(tokens()).logits, before)


@torch.no_grad()
def test_dense_attention_under_a_sparse_head_can_be_chosen_and_stays():
    model = sparsify(tiny_model("llama"), head="entmax15")
    model.set_attn_implementation("eager")
    model(tokens())
    assert unsparsify(model).config._attn_implementation == "eager"


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_changing_a_later_token_does_not_move_earlier_logits(name):
    model = sparsify(tiny_model(name), attn="sparsemax")
    ids = tokens()
    changed = ids.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 20 + 3
    one, other = model(ids).logits, model(changed).logits
    torch.testing.assert_close(one[:, :4], other[:, :4])
    assert not torch.allclose(one[:, 4:], other[:, 4:])


@pytest.mark.parametrize("name", SEQ2SEQS)
@torch.no_grad()
def test_changing_a_later_target_token_does_not_move_earlier_logits(name):
    model = sparsify(tiny_model(name), attn="entmax15")
    target = tokens(seed=5)
    changed = target.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 20 + 3
    one = model(input_ids=tokens(), decoder_input_ids=target).logits
    other = model(input_ids=tokens(), decoder_input_ids=changed).logits
    torch.testing.assert_close(one[:, :4], other[:, :4])
    assert not torch.allclose(one[:, 4:], other[:, 4:])


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_does_not_leak(name, side):
    model = sparsify(tiny_model(name), attn="entmax15")
    ids = tokens(1, 5)
    padding = torch.full((1, 3), PAD)
    padded = torch.cat([padding, ids] if side == "left" else [ids, padding], dim=1)
    mask = (padded != PAD).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    kept = slice(3, None) if side == "left" else slice(0, 5)
    if model.config.is_encoder_decoder:
        if side == "left" and name != "t5":
            pytest.skip("absolute source positions: left padding moves them in the dense model too")
        decoder = {"decoder_input_ids": tokens(1, 4, seed=3)}
        alone = model(input_ids=ids, **decoder).logits
        among = model(input_ids=padded, attention_mask=mask, **decoder).logits
    else:
        alone = model(input_ids=ids).logits
        among = model(input_ids=padded, attention_mask=mask, position_ids=positions).logits[:, kept]
    torch.testing.assert_close(among, alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CAUSAL + SEQ2SEQS)
@torch.no_grad()
def test_cached_decoding_equals_prefill(name):
    model = sparsify(tiny_model(name), attn="entmax15")
    ids, extra, key = tokens(), {}, "input_ids"
    if model.config.is_encoder_decoder:
        extra, key = {"encoder_outputs": model.get_encoder()(tokens(seed=4))}, "decoder_input_ids"
    whole = model(**{key: ids}, **extra).logits
    cache, steps = None, []
    for position in range(ids.shape[1]):
        output = model(**{key: ids[:, position : position + 1]}, **extra, **{CACHE: cache}, use_cache=True)
        cache = output[CACHE]
        steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_each_kind_of_attention_takes_its_own_map():
    model = tiny_model("bart")
    sparsify(model, attn={"encoder": "sparsemax", "cross": {"name": "entmax", "alpha": 1.2}})
    chosen = {(site.kind, site.map_config and site.map_config.name) for _, site in attention_sites(model)}
    assert chosen == {("encoder", "sparsemax"), ("decoder", None), ("cross", "entmax")}
    output = model(input_ids=tokens(), decoder_input_ids=tokens(), output_attentions=True)
    assert (output.encoder_attentions[0] == 0).any()
    assert (output.cross_attentions[0] == 0).any()
    lower = torch.ones(7, 7, dtype=torch.bool).tril()
    assert (output.decoder_attentions[0][..., lower] > 0).all()


def test_kinds_are_read_off_paths():
    kinds = {
        name: {site.kind for _, site in attention_sites(sparsify(tiny_model(name), "entmax15"))}
        for name in ARCHITECTURES
    }
    assert all(kinds[name] == {"decoder"} for name in CAUSAL)
    assert all(kinds[name] == {"encoder", "decoder", "cross"} for name in SEQ2SEQS)
    assert kinds["bert"] == kinds["modernbert"] == {"encoder"}


@torch.no_grad()
def test_the_call_on_made_up_tokens_leaves_nothing_in_the_modules():
    """Qwen2-VL keeps how far images shift the positions after them, for calls with a cache or embeddings alone."""
    model = build("qwen2_vl", "Qwen2VLForConditionalGeneration")
    embeddings = model.get_input_embeddings()(tokens(3))
    before = model(inputs_embeds=embeddings).logits
    assert sparsify(model, attn="entmax15").model.rope_deltas is None
    model(inputs_embeds=embeddings)
    assert torch.equal(unsparsify(model)(inputs_embeds=embeddings).logits, before)


@torch.no_grad()
def test_the_call_on_made_up_tokens_leaves_block_sparse_attention_in_its_place():
    """BigBird replaces the modules of its block-sparse attention by full ones when it is called on a short input."""
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BigBirdForMaskedLM(BigBirdConfig(vocab_size=99, block_size=4, num_random_blocks=1, **shape)).eval()
    long = torch.randint(3, 99, (1, 48))
    blocks, before = model.bert.encoder.layer[0].attention.self, model(long).logits
    sparsify(model, head="entmax15")
    assert model.bert.encoder.layer[0].attention.self is blocks
    assert torch.equal(model(long, log_probs=False).logits, before)
    assert torch.equal(unsparsify(model)(long).logits, before)


@pytest.mark.parametrize("training", [False, True])
@torch.no_grad()
def test_biases_that_change_after_sparsify_count_in_evaluation(training):
    """LeViT keeps the biases of its attention from the first call in evaluation mode until training begins."""
    model, other = (build("levit", "LevitForImageClassification").train(training) for _ in range(2))
    sparsify(model, attn="entmax15")
    for each in (model, other):
        for name, weight in each.named_parameters():
            if name.endswith("attention_biases"):
                weight.copy_(torch.arange(weight.numel()).view_as(weight).sin())
        each.eval()
    sparsify(other, attn="entmax15")
    pixels = torch.randn(2, 3, model.config.image_size, model.config.image_size)
    assert torch.equal(model(pixels).logits, other(pixels).logits)


@pytest.mark.parametrize("training", [False, True])
@torch.no_grad()
def test_the_call_on_made_up_tokens_leaves_weights_that_are_divided_for_evaluation(training):
    """RWKV divides weights of its later layers by powers of two when it is first called in evaluation mode."""
    shape = {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 3, "rescale_every": 1}
    model = RwkvForCausalLM(RwkvConfig(vocab_size=99, context_length=16, **shape)).train(training)
    weights, ids = copy.deepcopy(model.state_dict()), tokens()
    before = copy.deepcopy(model).eval()(ids).logits
    sparsify(model, head="entmax15")
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert torch.equal(model.eval()(ids, log_probs=False).logits, before)
    unsparsify(model)
    assert torch.equal(model(ids).logits, before)


@torch.no_grad()
def test_frequencies_that_grow_with_the_input_are_again_those_of_before():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = tiny_model("llama", max_position_embeddings=8, rope_parameters=rope)
    rotary, ids = model.model.rotary_emb, tokens()
    frequencies, reference = rotary.inv_freq, model(ids).logits
    compare(model, [{"input_ids": torch.cat([ids, ids, ids], dim=1)}], attn="entmax15", progress=False)
    assert rotary.max_seq_len_cached == 8
    assert rotary.inv_freq is frequencies
    assert torch.equal(model(ids).logits, reference)


@torch.no_grad()
def test_models_with_different_maps_and_dense_models_live_side_by_side():
    dense, one, other = tiny_model("llama"), tiny_model("llama"), tiny_model("llama")
    ids = tokens()
    reference = dense(ids).logits
    sparsify(one, attn="sparsemax", head="sparsemax")
    sparsify(other, attn="entmax15", head="alpha_relu")
    assert torch.equal(dense(ids).logits, reference)
    assert not torch.allclose(one(ids).logits, other(ids).logits)
    unsparsify(one)
    assert torch.equal(one(ids).logits, reference)
    assert is_sparse(other)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
@torch.no_grad()
def test_copies_are_sparse_and_independent(duplicate):
    model = sparsify(tiny_model("bart"), attn="entmax15", head="alpha_relu")
    inputs = labelled(model)
    twin = duplicate(model)
    assert torch.equal(twin(**inputs).loss, model(**inputs).loss)
    unsparsify(model)
    assert is_sparse(twin)
    assert not torch.equal(twin(**inputs).loss, model(**inputs).loss)
    unsparsify(twin)
    assert torch.equal(twin(**inputs).logits, model(**inputs).logits)


def test_a_peft_model_is_reached_inside():
    model = get_peft_model(tiny_model("llama"), LoraConfig(target_modules=["q_proj"]))
    assert sparsify(model, attn="entmax15", head="entmax15") is model
    assert is_sparse(model)
    assert sparse_config(model).head.name == "entmax15"
    assert (attentions(model, input_ids=tokens())[0] == 0).any()
    assert not is_sparse(unsparsify(model))


def test_observe_counts_supports():
    model = sparsify(tiny_model("gpt2"), attn="entmax15")
    with observe(model) as counts:
        weights = attentions(model, input_ids=tokens())
    count = counts["transformer.h.0.attn"]
    assert count.support_size == pytest.approx(float((weights[0] > 0).sum(-1).float().mean()))
    assert count.zero_rate == pytest.approx(float((weights[0] == 0).float().mean()))
    model(tokens())
    assert count.calls == 1


def test_random_state_and_training_mode_are_left_alone():
    model = tiny_model("gpt2").train()
    model.transformer.h[0].eval()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    sparsify(model, attn="entmax15", head="alpha_relu")
    assert torch.equal(torch.rand(2), expected)
    assert model.training
    assert not model.transformer.h[0].training


def mamba():
    return MambaForCausalLM(MambaConfig(vocab_size=23, hidden_size=32, num_hidden_layers=1, state_size=4))


def classifier():
    return BertForSequenceClassification(
        BertConfig(vocab_size=23, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    )


BAD = [
    ({"attn": "entmx15"}, ValueError, "unknown sparse map 'entmx15'; choose one of .*'entmax15'"),
    ({"head": {"name": "entmax", "alpha": 0.8}}, ValueError, "alpha must be a number from 1 to 64, was 0.8"),
    (
        {"attn": {"name": "entmax", "alpha": "big"}},
        TypeError,
        "alpha must be a number from 1 to 64, a list with one for each head or .learned., was 'big'",
    ),
    ({"head": {"name": "alpha_relu", "alpha": 1.0}}, ValueError, "alpha must be a number from 1.001 to 5, was 1.0"),
    (
        {"head": {"name": "alpha_relu", "tau": float("nan")}},
        ValueError,
        'tau must be a number from -1000000 to 1000000 or "auto", was nan',
    ),
    ({"attn": "alpha_relu"}, ValueError, "for attention give alpha_relu a number"),
    (
        {"head": {"name": "sparsemax", "alpha": 2}},
        ValueError,
        "sparsemax does not take 'alpha'; its settings are: 'centered', 'temperature'",
    ),
    (
        {"attn": {"name": "entmax15", "alpha": 1.3}},
        ValueError,
        "entmax15 does not take 'alpha'; its settings are: .*, or take \"entmax\"",
    ),
    ({"head": {"alpha": 2}}, ValueError, "head needs the map's name"),
    ({"head": 1.5}, TypeError, "head must be None, a map's name or a mapping"),
    ({"attn": {"self": "entmax15"}}, ValueError, "kinds of attention are 'encoder', 'decoder', 'cross', was"),
    ({"attn": {"alpha": 1.5}}, ValueError, "was \\['alpha'\\]; one map has a \"name\""),
    ({"attn": {"cross": "entmax15"}}, ValueError, "LlamaForCausalLM has no cross attention; it has: 'decoder'"),
    (
        {"attn": "sparsegen_log"},
        ValueError,
        "attn: sparsegen_log does not take scores of any sign; .*'sparsehourglass'",
    ),
    (
        {"head": "sparsehourglass"},
        ValueError,
        "'sparsehourglass' is not the gradient of a function.*no Fenchel-Young loss",
    ),
    ({}, ValueError, "nothing to make sparse"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BAD, ids=[str(case[0]) for case in BAD])
@torch.no_grad()
def test_bad_requests_are_refused_before_anything_changes(settings, error, message):
    model = tiny_model("llama")
    config = model.config.to_dict()
    with pytest.raises(error, match=message):
        sparsify(model, **settings)
    assert not is_sparse(model)
    assert model.config.to_dict() == config


def test_sparsifying_twice_and_undoing_twice_are_refused():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    with pytest.raises(ValueError, match=r"sparse already.*unsparsify"):
        sparsify(model, head="entmax15")
    unsparsify(model)
    with pytest.raises(ValueError, match="is not sparse"):
        unsparsify(model)
    with pytest.raises(ValueError, match="is not sparse"):
        sparse_config(model)


def test_models_that_do_not_fit_are_refused_by_name():
    with pytest.raises(ValueError, match="BertForSequenceClassification has no language-model head"):
        sparsify(classifier(), head="entmax15")
    with pytest.raises(ValueError, match="MambaForCausalLM has no attention that is computed with softmax"):
        sparsify(mamba(), attn="entmax15")
    with pytest.raises(TypeError, match=r"a Transformers model .* was Linear"):
        sparsify(torch.nn.Linear(2, 2), attn="entmax15")
    assert is_sparse(sparsify(mamba(), head="entmax15"))
    assert is_sparse(sparsify(classifier(), attn="entmax15"))


def test_a_head_whose_distributions_the_model_mixes_by_itself_is_refused():
    parts = DPRConfig(num_hidden_layers=1), tiny_model("bart").config
    config = RagConfig.from_question_encoder_generator_configs(*parts, vocab_size=23)
    model = RagTokenForGeneration(config, question_encoder=DPRQuestionEncoder(parts[0]), generator=tiny_model("bart"))
    # Its logits were the map of the logarithm of the mixture of softmaxes: neither sparse nor dense.
    with pytest.raises(ValueError, match=r"RagTokenForGeneration decodes from a mixture .* pass head=None"):
        sparsify(model, head="sparsemax")
    assert not is_sparse(model)


@torch.no_grad()
def test_an_example_replaces_made_up_input():
    model = tiny_model("bart")
    example = {"input_ids": tokens(1, 3), "decoder_input_ids": tokens(1, 2)}
    assert is_sparse(sparsify(model, attn="entmax15", example=example))


@torch.no_grad()
def test_head_map_is_the_one_asked_for():
    model = sparsify(tiny_model("gpt2"), head={"name": "entmax", "alpha": 1.7})
    logits = model(tokens(), log_probs=False).logits
    torch.testing.assert_close(model(tokens()).logits.exp(), F.entmax(logits, 1.7), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("settings", [{"attn": "entmax15"}, {"attn": "entmax15", "head": "entmax15"}])
def test_a_configuration_that_asks_for_attention_weights_is_refused_before_training(settings):
    model = tiny_model("llama", attn_implementation="eager", output_attentions=True)
    before = model(tokens()).logits
    with pytest.raises(ValueError, match=r"has output_attentions=True, with .*set it to False"):
        sparsify(model, **settings)
    assert torch.equal(model(tokens()).logits, before)
    model.config.output_attentions = False
    sparsify(model, **settings)
    with pytest.raises(ValueError, match="output_attentions"):
        model.config.output_attentions = True


def test_attention_weights_asked_for_in_the_configuration_beside_a_sparse_head_alone_are_saved(tmp_path):
    model = tiny_model("llama", attn_implementation="eager", output_attentions=True)
    sparsify(model, head="entmax15").save_pretrained(tmp_path)
    assert model.config.output_attentions
    again = from_pretrained(tmp_path)
    torch.testing.assert_close(again(tokens()).logits, model(tokens()).logits)
    with pytest.raises(ValueError, match="output_attentions=True goes with a call of the model"):
        from_pretrained(tmp_path, output_attentions=True)
    with pytest.raises(Exception, match="output_attentions"):
        LlamaForCausalLM.from_pretrained(tmp_path, output_attentions=True)


@pytest.mark.parametrize("head", ["entmax15", "alpha_relu", {"name": "entmax15", "temperature": "auto"}], ids=str)
def test_a_head_without_rows_for_the_classes_is_refused(head):
    model = tiny_model("llama")
    size = model.config.hidden_size
    model.lm_head = nn.Sequential(nn.Linear(size, size), nn.Linear(size, model.config.vocab_size))
    with pytest.raises(ValueError, match="LlamaForCausalLM: the head is a Sequential, which has no weight"):
        sparsify(model, head=head)
    late = sparsify(tiny_model("llama"), head="entmax15")
    late.lm_head = model.lm_head
    with pytest.raises(NotImplementedError, match="the head is a Sequential, which has no weight"):
        late(**labelled(late))


@pytest.mark.parametrize("change", [lambda layers: layers[::-1], lambda layers: layers[:1]], ids=["moved", "removed"])
def test_layers_with_maps_of_their_own_are_not_saved_in_other_places(change, tmp_path):
    attn = {"decoder": [{"name": "entmax", "alpha": 1.2}, {"name": "entmax", "alpha": 1.7}]}
    model = sparsify(tiny_model("llama"), attn=attn)
    model.model.layers = nn.ModuleList(change(list(model.model.layers)))
    model.config.num_hidden_layers = len(model.model.layers)
    for save in (model.save_pretrained, lambda path: save_pretrained(model, path)):
        with pytest.raises(ValueError, match="layers of this LlamaForCausalLM were moved or removed after"):
            save(tmp_path / "model")
    unsparsify(model).save_pretrained(tmp_path / "model")
    alike = sparsify(tiny_model("llama"), attn="entmax15")
    alike.model.layers = nn.ModuleList(change(list(alike.model.layers)))
    alike.config.num_hidden_layers = len(alike.model.layers)
    alike.save_pretrained(tmp_path / "alike")
    assert len(attention_sites(from_pretrained(tmp_path / "alike"))) == len(alike.model.layers)


class ByKeyword(LlamaForCausalLM):
    """Calls its head, and multiplies, by the names of arguments."""

    def forward(self, input_ids=None, labels=None, **kwargs):
        hidden = torch.matmul(input=self.model(input_ids=input_ids).last_hidden_state, other=torch.eye(32))
        logits = self.lm_head(input=hidden)
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return CausalLMOutput(loss, logits)


def test_a_forward_may_pass_arguments_by_name():
    model = ByKeyword(tiny_model("llama").config).eval()
    assert sparsify(model, attn="entmax15", head="entmax15")(tokens(), labels=tokens()).loss.isfinite()


def test_a_forward_that_another_library_replaced_is_the_one_that_runs(monkeypatch):
    sparsify(tiny_model("llama"), attn="entmax15")
    plain = LlamaForCausalLM.forward

    @functools.wraps(plain)
    def doubled(self, *args, **kwargs):
        output = plain(self, *args, **kwargs)
        output.logits = 2 * output.logits
        return output

    expected = 2 * sparsify(tiny_model("llama"), attn="entmax15")(tokens()).logits
    monkeypatch.setattr(LlamaForCausalLM, "forward", doubled)
    assert torch.equal(sparsify(tiny_model("llama"), attn="entmax15")(tokens()).logits, expected)


@pytest.mark.parametrize("build", [tiny_model, tiny_inline_model])
@torch.no_grad()
def test_blocks_with_dense_maps_end_one_by_one(build):
    model = sparsify(build("llama" if build is tiny_model else "bloom"), attn="entmax15", head="entmax15")
    sparse = model(tokens()).logits
    with dense_attention(model):
        expected = model(tokens()).logits
        with dense_head(model):
            assert not torch.equal(model(tokens()).logits, expected)
        assert torch.equal(model(tokens()).logits, expected)
    with dense_head(model):
        expected = model(tokens()).logits
        with dense_head(model):
            pass
        assert torch.equal(model(tokens()).logits, expected)
    assert torch.equal(model(tokens()).logits, sparse)
