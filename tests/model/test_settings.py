"""Settings that differ by layer and by head, and settings that are learned."""

import copy

import pytest
import torch
from datasets import Dataset
from transformers import AlbertConfig, AlbertForMaskedLM

import hf_sparse.functional as F
from hf_sparse import (
    SparseConfig,
    SparseTrainer,
    from_pretrained,
    save_pretrained,
    sparse_config,
    sparsify,
    unsparsify,
)
from hf_sparse.attention import attention_sites
from hf_sparse.model.attach import change_settings
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import attentions, labelled, tiny_model, tokens
from tests.training.runs import arguments

LEARNED = {"name": "entmax", "alpha": {"learned": 1.3}}


@torch.no_grad()
def test_layers_take_their_own_maps(tmp_path):
    model = sparsify(tiny_model("llama"), attn={"decoder": ["sparsemax", None]})
    first, second = attentions(model, input_ids=tokens())
    lower = torch.ones(7, 7, dtype=torch.bool).tril()
    assert (first[..., lower] == 0).any()
    assert (second[..., lower] > 0).all()
    model.save_pretrained(tmp_path)
    assert torch.equal(from_pretrained(tmp_path)(tokens()).logits, model(tokens()).logits)


@torch.no_grad()
def test_heads_take_their_own_alpha(tmp_path):
    alphas = [1.0, 1.2, 1.5, 2.0]
    model = sparsify(tiny_model("llama"), attn={"name": "entmax", "alpha": alphas})
    weights = attentions(model, input_ids=tokens())[0]
    for head, alpha in enumerate(alphas):
        alone = sparsify(tiny_model("llama"), attn={"name": "entmax", "alpha": alpha})
        torch.testing.assert_close(
            weights[:, head], attentions(alone, input_ids=tokens())[0][:, head], atol=1e-5, rtol=1e-4
        )
    model.save_pretrained(tmp_path)
    assert sparse_config(from_pretrained(tmp_path)) == sparse_config(model)


@pytest.mark.parametrize(
    ("choice", "start"),
    [
        ({"name": "entmax", "alpha": "learned"}, 1.5),
        (LEARNED, 1.3),
        ({"name": "sparsegen_lin", "lam": {"learned": 0.4}}, 0.4),
        ({"name": "sparsehourglass", "q": "learned"}, 1.0),
    ],
    ids=str,
)
def test_a_learned_setting_starts_at_its_number_and_gets_a_gradient_for_each_head(choice, start):
    model = sparsify(tiny_model("llama"), attn=choice)
    ((setting, _),) = [entry for entry in choice.items() if entry[0] != "name"]
    fixed = sparsify(tiny_model("llama"), attn={**choice, setting: start})
    inputs = labelled(model)
    loss = model(**inputs).loss
    torch.testing.assert_close(loss, fixed(**inputs).loss, atol=1e-5, rtol=1e-5)
    loss.backward()
    for layer in model.model.layers:
        parameter = getattr(layer.self_attn, f"sparse_{setting}").value
        assert parameter.shape == (4,)
        assert (parameter.grad != 0).any()


def test_the_gradient_is_that_of_the_formula():
    model = sparsify(tiny_model("gpt2").double(), attn=LEARNED)
    parameter = model.transformer.h[0].attn.sparse_alpha.value
    model(tokens()).logits.square().mean().backward()
    with torch.no_grad():
        values = []
        for step in (1e-6, -2e-6):
            parameter[2] += step
            values.append(float(model(tokens()).logits.square().mean()))
    assert float(parameter.grad[2]) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4)


def test_trainer_learns_and_checkpoints_bring_it_back(tmp_path):
    model = sparsify(tiny_model("t5"), attn={"cross": LEARNED, "encoder": "sparsemax"}, head="entmax15")
    before = copy.deepcopy(model.state_dict())
    data = Dataset.from_dict({"input_ids": tokens(8).tolist(), "labels": tokens(8, seed=4).tolist()})
    SparseTrainer(model, arguments(tmp_path / "run", max_steps=3), train_dataset=data).train()
    names = [name for name in model.state_dict() if name.endswith("sparse_alpha.value")]
    assert len(names) == 2
    for name in names:
        assert not torch.equal(model.state_dict()[name], before[name])
    save_pretrained(model, tmp_path / "model")
    loaded = from_pretrained(tmp_path / "model")
    inputs = labelled(model)
    assert torch.equal(loaded(**inputs).logits, model.eval()(**inputs).logits)
    assert all(torch.equal(loaded.state_dict()[name], model.state_dict()[name]) for name in names)


@torch.no_grad()
def test_undoing_takes_the_parameters_away():
    model = tiny_model("bart")
    names, expected = set(model.state_dict()), model(**labelled(model)).logits
    sparsify(model, attn=LEARNED)
    assert set(model.state_dict()) - names
    unsparsify(model)
    assert set(model.state_dict()) == names
    assert torch.equal(model(**labelled(model)).logits, expected)


@torch.no_grad()
def test_a_copy_learns_by_itself():
    model = sparsify(tiny_model("llama"), attn=LEARNED)
    twin = copy.deepcopy(model)
    twin.model.layers[0].self_attn.sparse_alpha.value += 1
    assert not torch.equal(twin(tokens()).logits, model(tokens()).logits)
    assert torch.equal(model(tokens()).logits, sparsify(tiny_model("llama"), attn=LEARNED)(tokens()).logits)


def test_inline_attention_learns_where_its_scores_show_heads():
    model = sparsify(tiny_inline_model("gptj"), attn=LEARNED)
    model(**labelled(model)).loss.backward()
    sites = attention_sites(model)
    assert sites
    assert all((module.sparse_alpha.value.grad != 0).any() for module, _ in sites)


def test_kinds_and_layers_are_counted():
    model = sparsify(tiny_model("bart"), attn="entmax15")
    layers = {(site.kind, site.layer) for _, site in attention_sites(model)}
    assert layers == {(kind, layer) for kind in ("encoder", "decoder", "cross") for layer in (0, 1)}


BAD = [
    ({"attn": {"decoder": ["sparsemax"]}}, ValueError, r"attn\['decoder'\] lists 1 layer, LlamaForCausalLM has 2"),
    ({"attn": {"decoder": [None, None]}}, ValueError, r"attn\['decoder'\] lists no map"),
    ({"attn": ["sparsemax", None]}, TypeError, "a list of maps, one for each layer, goes with a kind"),
    (
        {"attn": {"decoder": ["nomax", None]}},
        ValueError,
        r"attn\['decoder'\]\[0\]: unknown sparse map 'nomax'; .*'csparsemax'.*'sigmoid'",
    ),
    (
        {"head": "nomax"},
        ValueError,
        "head: unknown sparse map 'nomax'; choose one of 'alpha_relu', 'entmax', 'entmax15', 'softmax', "
        "'sparsegen_lin', 'sparsemax'$",
    ),
    (
        {"attn": {"name": "entmax", "alpha": [1.5, 1.2]}},
        ValueError,
        "alpha is given for 2 heads, but scores are of shape .*: give one number, or a list of 4",
    ),
    (
        {"attn": {"name": "entmax", "alpha": []}},
        ValueError,
        r"a number from 1 to 64, a list with one for each head, was \[\]",
    ),
    ({"attn": {"name": "entmax", "alpha": [1.5, 0.5]}}, ValueError, "alpha must be a number from 1 to 64, was 0.5"),
    ({"attn": {"name": "entmax", "alpha": {"learned": 2.0}}}, ValueError, "cannot start to be learned at 2.0"),
    (
        {"attn": {"name": "entmax15", "temperature": {"learned": "auto"}}},
        TypeError,
        "attn: temperature must be a number from 0.0001 to 1000000, was 'auto'",
    ),
    (
        {"attn": {"name": "entmax", "alpha": 16, "temperature": "auto"}},
        ValueError,
        r'attn: temperature="auto" would be 3.52e\+13 at alpha = 16, and the highest is 1e\+06; give a number, or a s',
    ),
    (
        {"head": {"name": "entmax", "alpha": 16, "temperature": "auto"}},
        ValueError,
        r'head: temperature="auto" would be 1.63e\+10 at alpha = 16, and the highest is 1e\+06; give a number, or a s',
    ),
    (
        {"attn": {"name": "entmax", "alpha": {"learn": 1.5}}},
        TypeError,
        "alpha must be a number from 1 to 64, a list with one for each head or \"learned\", was {'learn': 1.5}",
    ),
    (
        {"head": {"name": "entmax", "alpha": "learned"}},
        TypeError,
        "alpha must be a number from 1 to 64, was 'learned'; settings of attention can be learned",
    ),
    ({"head": {"name": "entmax", "alpha": [1.5]}}, TypeError, r"alpha must be a number from 1 to 64, was \[1.5\]"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BAD, ids=[str(case[0]) for case in BAD])
@torch.no_grad()
def test_bad_settings_are_refused_and_the_model_stays_dense(settings, error, message):
    model = tiny_model("llama")
    expected, config = model(tokens()).logits, model.config.to_dict()
    with pytest.raises(error, match=message):
        sparsify(model, **settings)
    assert torch.equal(model(tokens()).logits, expected)
    assert model.config.to_dict() == config


@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize(
    ("function", "value"), [(F.sparsegen_lin, 0.3), (F.sparsegen_exp, -1.0), (F.sparsehourglass, 0.7)]
)
def test_tensor_settings_of_maps_equal_numbers_and_have_gradients(function, value, dim):
    z = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shape = [3, 4, 5]
    shape[dim] = 1
    setting = torch.full(shape, value, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(function(z, setting, dim=dim), function(z, value, dim=dim))
    assert torch.autograd.gradcheck(lambda s: function(z, s, dim=dim), (setting,))
    with pytest.raises(ValueError, match="must broadcast over the rows of the scores"):
        function(z, torch.ones(3, 4, 5, dtype=torch.float64), dim=dim)


def test_layers_that_share_one_module_are_told_from_those_of_the_configuration():
    sizes = {"embedding_size": 16, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 16}
    model = AlbertForMaskedLM(AlbertConfig(vocab_size=23, num_hidden_layers=12, **sizes))
    listed = r"lists 12 layers, AlbertForMaskedLM has 1 of them \(of 12: layers that share a module count once"
    with pytest.raises(ValueError, match=listed):
        sparsify(model, attn={"encoder": [None] * 10 + ["entmax15", None]})
    sparsify(model, attn={"encoder": ["entmax15"]})
    assert [site.path for _, site in attention_sites(model)] == [
        "albert.encoder.albert_layer_groups.0.albert_layers.0.attention"
    ]


def test_tags_of_parts_follow_the_settings():
    model = sparsify(tiny_model("llama"), attn="entmax15", head="sparsemax")
    change_settings(model, SparseConfig.parse(attn={"name": "entmax", "alpha": 1.2}, head="entmax15"))
    assert model.model_tags == ["hf_sparse", "entmax", "entmax15"]
    assert model.model.model_tags == ["hf_sparse", "entmax"]
