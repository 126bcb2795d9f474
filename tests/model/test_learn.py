"""Settings that become learned start where they were, and are saved and undone as others are."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

import hf_sparse
from hf_sparse import calibrate, learn_settings, sparsify, unsparsify
from tests.conversion.data import loader
from tests.tiny_models import labelled, tiny_model, tokens


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "bart"])
@torch.no_grad()
def test_the_output_stays(name, tmp_path):
    model = sparsify(tiny_model(name), attn={"name": "entmax", "alpha": [1.2, 1.5, 1.8, 1.9], "temperature": 0.7})
    inputs = labelled(model)
    before = model(**inputs).logits
    learn_settings(model)
    torch.testing.assert_close(model(**inputs).logits, before, atol=1e-4, rtol=0)
    learned = [name for name, _ in model.named_parameters() if ".sparse_alpha." in name]
    assert len(learned) == len([name for name, _ in model.named_parameters() if ".sparse_temperature." in name]) > 0
    model.save_pretrained(tmp_path)
    loaded = hf_sparse.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    unsparsify(model)
    assert torch.equal(model(**inputs).logits, tiny_model(name)(**inputs).logits)


@torch.no_grad()
def test_what_calibrate_found_is_where_they_start():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    calibrate(model, loader(model), progress=False)
    fitted = [rule.map.value("temperature").numbers for rule in hf_sparse.sparse_config(model).attn]
    learn_settings(model, ["temperature"])
    for layer, numbers in zip(model.model.layers, fitted, strict=True):
        found = layer.self_attn.sparse_temperature.value.exp()
        torch.testing.assert_close(found, torch.tensor(numbers).expand(4), atol=1e-5, rtol=1e-5)


def test_an_end_of_alphas_range_starts_inside_it():
    model = learn_settings(sparsify(tiny_model("llama"), attn={"name": "entmax", "alpha": [1.0, 1.5, 1.7, 2.0]}))
    starts = hf_sparse.sparse_config(model).attn[0].map.value("alpha").numbers
    assert starts == pytest.approx((1.01, 1.5, 1.7, 1.99))


def test_an_alpha_outside_its_range_is_refused():
    model = sparsify(tiny_model("llama"), attn={"name": "entmax", "alpha": 3.0})
    with pytest.raises(ValueError, match="alpha is learned between 1 and 2, and a map of this model's attn has 3"):
        learn_settings(model)
    learn_settings(model, ["temperature"])
    assert hf_sparse.sparse_config(model).attn[0].map.alpha == 3


def test_a_part_of_a_sparse_model_is_refused():
    """The whole keeps the settings: it would be saved with the old ones."""
    model = sparsify(tiny_model("bert"), attn="entmax15")
    with pytest.raises(ValueError, match="this BertModel is a part of a sparse BertForMaskedLM, which keeps"):
        learn_settings(model.bert)


def test_softmax_and_what_is_learned_already_stay():
    model = sparsify(tiny_model("bart"), attn={"encoder": "softmax", "cross": {"name": "entmax", "alpha": "learned"}})
    with torch.no_grad():
        model.model.decoder.layers[0].encoder_attn.sparse_alpha.value.fill_(0.3)
    learn_settings(model)
    cross = model.model.decoder.layers[0].encoder_attn
    assert bool((cross.sparse_alpha.value == 0.3).all())
    assert cross.sparse_temperature.value.shape == (4,)
    assert not [name for name, _ in model.model.encoder.named_parameters() if "sparse_" in name]


@pytest.mark.parametrize("training", [True, False])
def test_what_is_learned_has_the_mode_of_its_model(training):
    model = sparsify(tiny_model("llama").train(training), attn={"name": "entmax", "alpha": "learned"})
    learn_settings(model, ["temperature"])
    assert {module.training for module in model.modules()} == {training}


def test_they_learn_under_peft():
    model = learn_settings(sparsify(tiny_model("llama"), attn="entmax15"), ["temperature"])
    config = LoraConfig(target_modules=["q_proj"], modules_to_save=["sparse_temperature"], task_type="CAUSAL_LM")
    adapted = get_peft_model(model, config)
    inputs = labelled(model)
    adapted(**inputs).loss.backward()
    learned = {name: p for name, p in adapted.named_parameters() if "sparse_temperature" in name and p.requires_grad}
    assert len(learned) == 2
    assert all(bool((p.grad != 0).any()) for p in learned.values())


def test_what_cannot_be_learned_is_refused():
    with pytest.raises(ValueError, match="is not sparse"):
        learn_settings(tiny_model("llama"))
    with pytest.raises(ValueError, match=r"no map in attention .* 'lam'; its maps are: entmax15"):
        learn_settings(sparsify(tiny_model("llama"), attn="entmax15"), ["lam"])
    with pytest.raises(ValueError, match="its maps are: softmax"):
        learn_settings(sparsify(tiny_model("llama"), head="entmax15"))
    adapted = get_peft_model(sparsify(tiny_model("llama"), attn="entmax15"), LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="PEFT would not save a setting"):
        learn_settings(adapted)
    assert not [name for name, _ in adapted.named_parameters() if "sparse_" in name]


def test_a_model_in_half_precision_learns_in_its_own_dtype():
    model = learn_settings(sparsify(tiny_model("llama"), attn="entmax15").bfloat16(), ["temperature"])
    assert model.model.layers[0].self_attn.sparse_temperature.value.dtype == torch.bfloat16
    model(**labelled(model)).loss.backward()
    assert bool(model.model.layers[0].self_attn.sparse_temperature.value.grad.isfinite().all())


def test_a_start_near_the_end_of_its_range_is_not_rounded_to_the_end():
    attn = {"name": "entmax", "alpha": {"learned": 1.997}}
    model = sparsify(tiny_model("llama").bfloat16(), attn=attn)
    model(**labelled(model)).loss.backward()
    value = model.model.layers[0].self_attn.sparse_alpha.value
    assert bool(value.isfinite().all())
    assert bool((value.grad != 0).any())
    attn = {"name": "sparsegen_lin", "lam": {"learned": 0.9995}}
    assert bool(sparsify(tiny_model("llama").bfloat16(), attn=attn)(tokens()).logits.isfinite().all())


def test_factors_by_length_are_learned_from_where_they_are():
    model = sparsify(tiny_model("llama"), attn={"name": "entmax15", "beta": 0.5})
    before = model(tokens()).logits
    learn_settings(model, ["beta"])
    torch.testing.assert_close(model(tokens()).logits, before)
    assert model.model.layers[0].self_attn.sparse_beta.value.requires_grad


def test_names_that_no_map_has_are_refused_beside_those_that_one_has():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    for name in ("temprature", "centered"):
        with pytest.raises(ValueError, match=f"no map can learn a setting '{name}'; .* are 'alpha', 'beta', "):
            learn_settings(model, ["alpha", name])
    for settings in ("alpha", 3):
        with pytest.raises(TypeError, match=r'settings must be a list of names, as \["alpha"\], was'):
            learn_settings(model, settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_checkpoint_lacks_starts_where_the_map_says(dtype, tmp_path):
    """Dense weights under a sparse configuration."""
    attn = {"name": "entmax", "alpha": {"learned": 1.3}, "temperature": {"learned": 0.7}}
    expected = sparsify(tiny_model("llama").to(dtype), attn=attn)
    tiny_model("llama").to(dtype).save_pretrained(tmp_path / "dense")
    expected.save_pretrained(tmp_path / "sparse")
    config = AutoConfig.from_pretrained(tmp_path / "sparse")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "dense", config=config, dtype=dtype).state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.state_dict().items())
    with torch.no_grad():
        expected.model.layers[0].self_attn.sparse_alpha.value += 0.25
    expected.save_pretrained(tmp_path / "sparse")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "sparse", dtype=dtype).state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.state_dict().items())


def test_what_becomes_learned_without_gradients_can_be_trained():
    model = tiny_model("llama")
    with torch.inference_mode():
        sparsify(model, attn={"name": "entmax", "alpha": "learned", "temperature": 2.0})
        learn_settings(model, ["temperature"])
    model.train()(**labelled(model)).loss.backward()
    learned = [weight for name, weight in model.named_parameters() if ".sparse_" in name]
    assert len(learned) == 4
    assert all(weight.grad.abs().sum() > 0 for weight in learned)
