"""The head's temperature and the scale of its loss: the gradient is p - y at all; checkpoints keep their scale."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from hf_sparse import (
    AnnealingCallback,
    SparseConfig,
    SparseTrainer,
    from_pretrained,
    save_pretrained,
    sparse_config,
    sparsify,
)
from hf_sparse.functional import MAPS
from hf_sparse.model.attach import change_settings
from hf_sparse.model.lazy_logits import LinearLogits
from tests.reference import entmax_by_bisection
from tests.tiny_models import labelled, tiny_model, tokens
from tests.training.runs import arguments, rows_of_uneven_length

T = 2.5


def alpha_relu(z, alpha, tau):
    return ((alpha - 1) * z - tau).clamp(min=0) ** (1 / (alpha - 1))


# The maps of tempered logits, as float64 formulas or by bisection.
CLOSED_FORMS = {
    "softmax": ({}, lambda z: z.exp() / z.exp().sum(-1, keepdim=True)),
    "entmax": ({"alpha": 1.3}, lambda z: entmax_by_bisection(z, 1.3)),
    "entmax15": ({}, lambda z: entmax_by_bisection(z, 1.5)),
    "sparsemax": ({}, lambda z: entmax_by_bisection(z, 2.0)),
    "alpha_relu": ({"alpha": 1.5, "tau": 0.1}, lambda z: alpha_relu(z, 1.5, 0.1)),
    "sparsegen_lin": ({"lam": 0.4}, lambda z: entmax_by_bisection(z / 0.6, 2.0)),
}


def head_of(name, temperature=T):
    return {"name": name, "temperature": temperature, **CLOSED_FORMS[name][0]}


def gradient_at_the_logits(model, inputs):
    output = model(**inputs)
    return output.logits, torch.autograd.grad(output.loss, output.logits)[0]


def one_hot(labels, num_classes=23):
    return nn.functional.one_hot(labels, num_classes).double()


def with_scale(model, loss_scale):
    change_settings(model, SparseConfig.from_dict({**sparse_config(model).to_dict(), "loss_scale": loss_scale}))
    return model


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_the_gradient_is_p_minus_y_at_every_temperature(name):
    model = sparsify(tiny_model("bart").double(), head=head_of(name))
    inputs = labelled(model)
    logits, gradient = gradient_at_the_logits(model, inputs)
    counted = inputs["labels"] != -100
    z, y = logits[counted].detach(), one_hot(inputs["labels"][counted])
    p = CLOSED_FORMS[name][1](z / T)
    torch.testing.assert_close(gradient[counted] * len(z), p - y, atol=1e-6, rtol=1e-6)
    assert not gradient[~counted].any()


def test_every_map_with_a_loss_of_logits_of_any_sign_is_covered():
    learned = {name for name, known in MAPS.items() if known.regularizer is not None and known.any_scores}
    assert learned - {"sparsegen_exp"} <= set(CLOSED_FORMS), "give new maps a closed form"


@pytest.mark.parametrize("name", ["entmax", "entmax15", "sparsemax", "alpha_relu"])
def test_the_fused_loss_has_it_too(name):
    """By the head's matrix the gradient is (p - y)' h, whatever T is."""
    model = sparsify(tiny_model("llama").double(), head=head_of(name), fused_loss=True).train()
    inputs = labelled(model)
    hidden = []
    model.lm_head.register_forward_pre_hook(lambda _, args: hidden.append(args[0].detach()))
    output = model(**inputs)
    assert isinstance(output.logits, LinearLogits)
    assert not output.logits.computed
    (gradient,) = torch.autograd.grad(output.loss, model.lm_head.weight)
    labels = inputs["labels"][:, 1:]
    h = hidden[0][:, :-1][labels != -100]
    p = CLOSED_FORMS[name][1](h @ model.lm_head.weight.detach().T / T)
    residual = p - one_hot(labels[labels != -100])
    torch.testing.assert_close(gradient, residual.T @ h / len(h), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("loss_scale", "power"), [("temperature", 0), ("one", -1)])
def test_clipping_acts_alike_at_every_temperature(loss_scale, power):
    """The same p from logits T times as large: the norm that is clipped is that of T = 1, or a T-th of it."""
    norms = []
    for temperature in (1.0, T):
        model = tiny_model("llama").double()
        with torch.no_grad():
            model.lm_head.weight *= temperature
        with_scale(sparsify(model, head=head_of("entmax15", temperature)), loss_scale)
        (gradient,) = torch.autograd.grad(model(**labelled(model)).loss, model.lm_head.weight)
        norms.append(float(gradient.norm()))
    assert norms[1] == pytest.approx(norms[0] * T**power)


@pytest.mark.parametrize("training", [True, False])
def test_losses_differ_by_the_temperature_in_training_and_evaluation(training):
    model = sparsify(tiny_model("bart"), head=head_of("entmax15")).train(training)
    losses = []
    for loss_scale in ("temperature", "one"):
        torch.manual_seed(0)  # dropout
        losses.append(with_scale(model, loss_scale)(**labelled(model), num_items_in_batch=5).loss)
    torch.testing.assert_close(losses[0], T * losses[1])


def test_a_checkpoint_says_its_scale_and_one_without_it_keeps_a_factor_of_one(tmp_path):
    model = sparsify(tiny_model("llama"), head=head_of("entmax15"))
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    assert config["hf_sparse"]["loss_scale"] == "temperature"
    assert sparse_config(from_pretrained(tmp_path)).loss_factor == T
    del config["hf_sparse"]["loss_scale"]
    file.write_text(json.dumps(config))
    old = from_pretrained(tmp_path)
    assert sparse_config(old).loss_scale == "one"
    assert sparse_config(old).loss_factor == 1
    torch.testing.assert_close(T * old(**labelled(old)).loss, model(**labelled(model)).loss)
    old.save_pretrained(tmp_path / "again")
    assert "loss_scale" not in json.loads((tmp_path / "again" / "config.json").read_text())["hf_sparse"]


@pytest.mark.parametrize("loss_scale", ["temperature", "one"])
def test_an_adapter_on_a_dense_base_comes_back_under_its_scale(loss_scale, tmp_path):
    dense = tiny_model("llama")
    dense.save_pretrained(tmp_path / "base")
    base = with_scale(sparsify(type(dense).from_pretrained(tmp_path / "base"), head=head_of("entmax15")), loss_scale)
    model = get_peft_model(base, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    save_pretrained(model, tmp_path / "adapter")
    loaded = from_pretrained(tmp_path / "adapter")
    assert sparse_config(loaded) == sparse_config(model)
    assert sparse_config(loaded).loss_factor == (T if loss_scale == "temperature" else 1)
    inputs = labelled(base)
    torch.testing.assert_close(loaded.eval()(**inputs).loss, model.eval()(**inputs).loss)


def test_settings_that_train_alike_are_equal():
    """At T = 1, or with a dense head, the scale is no difference, and files are those of before."""
    for settings in ({"head": "entmax15"}, {"attn": {"name": "entmax15", "temperature": T}}):
        one, other = (SparseConfig.parse(**settings, loss_scale=scale) for scale in ("temperature", "one"))
        assert one == other
        assert "loss_scale" not in one.to_dict()
        assert SparseConfig.from_dict(one.to_dict()) == one


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="loss_scale must be 'temperature' or 'one', was 'half'"):
        SparseConfig.parse(head="entmax15", loss_scale="half")
    with pytest.raises(ValueError, match="loss_scale must be 'temperature' or 'one', was None"):
        SparseConfig.from_dict({"version": 1, "head": {"name": "entmax15"}, "loss_scale": None})


def trainer(model, folder, **options):
    return SparseTrainer(model, arguments(folder, **options), train_dataset=rows_of_uneven_length())


def test_training_is_not_resumed_under_another_scale(tmp_path):
    model = with_scale(sparsify(tiny_model("llama"), head=head_of("entmax15")), "one")
    trainer(model, tmp_path, save_strategy="steps", save_steps=1).train()
    checkpoint = str(tmp_path / "checkpoint-1")
    fresh = sparsify(tiny_model("llama"), head=head_of("entmax15"))
    with pytest.raises(ValueError, match=r"was trained with .*'fused_loss': False}, and this .*'loss_scale': 'temp"):
        trainer(fresh, tmp_path / "other", max_steps=2).train(resume_from_checkpoint=checkpoint)
    trainer(from_pretrained(checkpoint), tmp_path / "same", max_steps=2).train(resume_from_checkpoint=checkpoint)


def test_annealing_to_a_temperature_scales_the_loss_on_the_way(tmp_path):
    model = sparsify(tiny_model("llama"), head=head_of("entmax15"))
    callback = AnnealingCallback(over=2)
    target = sparse_config(model)
    assert [callback.settings(target, share).loss_factor for share in (0.0, 0.5, 1.0)] == [1.0, 1.75, 2.5]
    old = SparseConfig.parse(head=head_of("entmax15"), loss_scale="one")
    assert [callback.settings(old, share).loss_factor for share in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]


def test_distillation_scales_the_teachers_part_alike(tmp_path):
    """With the weight at 1 the gradient at the logits is p - q."""
    model, teacher = sparsify(tiny_model("bart"), head=head_of("entmax15")), tiny_model("bart", seed=3)
    options = {"distillation_weight": 1.0}
    learner = SparseTrainer(model, arguments(tmp_path, **options), teacher=teacher)
    inputs = {"input_ids": tokens(), "labels": tokens(seed=2)}
    outputs = learner._distillation.forward(model, **inputs)
    (gradient,) = torch.autograd.grad(outputs.loss, outputs.logits)
    p = entmax_by_bisection(outputs.logits.detach() / T, 1.5).float()
    q = teacher(**inputs).logits.softmax(-1)
    torch.testing.assert_close(gradient * inputs["labels"].numel(), p - q, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("head", "alpha"), [("entmax15", 1.5), ("sparsemax", 2.0), ({"name": "entmax", "alpha": 1.3}, 1.3)]
)
def test_the_temperature_of_a_head_is_worked_out_and_kept(head, alpha, tmp_path, caplog):
    asked = {"name": head} if isinstance(head, str) else head
    with caplog.at_level("INFO", "hf_sparse"):
        model = sparsify(tiny_model("llama"), head={**asked, "temperature": "auto"})
    temperature = 23 ** ((alpha - 1) / 2)
    assert sparse_config(model).head.temperature == pytest.approx(temperature)
    assert f"temperature of the head = {temperature:.4f}" in caplog.text
    model.save_pretrained(tmp_path)
    assert sparse_config(from_pretrained(tmp_path)) == sparse_config(model)


def test_the_threshold_is_estimated_at_the_temperature_that_was_worked_out():
    given = {"name": "alpha_relu", "temperature": 23**0.25}
    found = sparsify(tiny_model("bart"), head={**given, "temperature": "auto"})
    assert sparse_config(found) == sparse_config(sparsify(tiny_model("bart"), head=given))


def test_softmax_stays_as_it_is():
    head = sparse_config(sparsify(tiny_model("llama"), head={"name": "softmax", "temperature": "auto"})).head
    assert head.temperature == 1


@pytest.mark.parametrize(("name", "temperature"), [("entmax15", 64**0.25), ("sparsemax", 8.0), ("softmax", 1.0)])
def test_the_temperature_of_attention_counts_on_64_keys(name, temperature, tmp_path):
    auto = {"name": name, "temperature": "auto"}
    model = sparsify(tiny_model("bart"), attn={"encoder": auto, "cross": [None, auto]}, head="entmax15")
    rules = [rule for rule in sparse_config(model).attn if rule.map is not None]
    assert [rule.map.temperature for rule in rules] == pytest.approx([temperature, temperature])
    model.save_pretrained(tmp_path)
    assert sparse_config(from_pretrained(tmp_path)) == sparse_config(model)


LEARNED = {"name": "entmax", "alpha": "learned", "temperature": "auto"}


@pytest.mark.parametrize(("settings", "message"), [
    ({"attn": {"name": "csparsemax", "temperature": "auto"}}, "attn: .*follows one alpha.*csparsemax has none here"),
    ({"attn": {"cross": LEARNED}}, r"attn\['cross'\]: .*follows one alpha.*entmax has none here; give a number"),
    ({"head": {"name": "sparsegen_lin", "temperature": "auto"}}, "head: .*follows one alpha.*sparsegen_lin has none"),
])  # fmt: skip
def test_a_temperature_that_cannot_be_worked_out_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        sparsify(tiny_model("bart"), **settings)


def test_a_saved_head_whose_temperature_is_open_is_refused():
    with pytest.raises(ValueError, match="the saved head leaves 'temperature' open; it must be a number"):
        SparseConfig.from_dict({"version": 1, "head": {"name": "entmax15", "temperature": "auto"}})
