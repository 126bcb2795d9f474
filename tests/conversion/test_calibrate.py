"""calibrate brings a sparse model closer to the dense one, says by how much, and the settings stay with the model."""

import copy
import json
import math

import pytest
import torch
from transformers import LlamaForCausalLM

from hf_sparse import (
    calibrate,
    compare,
    from_pretrained,
    is_sparse,
    probabilities,
    sparse_config,
    sparsify,
    unsparsify,
)
from hf_sparse.attention import attention_sites
from hf_sparse.conversion import _measure
from hf_sparse.model.find import sparse_state
from tests.conversion.data import loader
from tests.model.test_centered_head import with_offset
from tests.model.test_head import scored as by_hand
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import attentions, labelled, tiny_model

MODELS = ["gpt2", "bart", "bert", "t5"]


def settings_of(model):
    return [site.map_config for _, site in attention_sites(model)], model.config.to_dict(), sparse_config(model)


@pytest.mark.parametrize("head", ["entmax15", "alpha_relu"])
@pytest.mark.parametrize("name", MODELS)
def test_every_layer_and_the_head_come_closer(name, head):
    model = sparsify(tiny_model(name), attn="entmax15", head=head)
    before = sparse_config(model)
    report = calibrate(model, loader(model), edges=1.0, progress=False)
    assert sparse_config(model) != before
    assert len(report.layers) == (6 if model.config.is_encoder_decoder else 2)
    for layer in report.layers:
        assert layer.after.error < layer.before.error
        assert layer.before.dense_support >= layer.after.support >= layer.before.support
    assert report.after.divergence < report.before.divergence
    assert report.held_out
    assert report.dense.divergence == pytest.approx(0, abs=1e-6)
    assert report.dense.support == 23


def measured_by_hand(name, sparse, batches, eps):
    """Loss, eps-perplexity, divergence and support from the models' own outputs, on the batch that is held out."""
    dense = tiny_model(name)
    losses, logs, divergences, supports = [], [], [], []
    for batch in batches[-1:]:
        z, y = by_hand(name, sparse(**batch).logits, batch["labels"])
        z_dense, _ = by_hand(name, dense(**batch).logits, batch["labels"])
        kept = y != -100
        q, p, y = probabilities(sparse, z[kept].double()), z_dense[kept].double().softmax(-1), y[kept]
        losses += [float(sparse(**batch).loss)] * len(y)
        logs += [-math.log((1 - eps) * float(row[c]) + eps / 23) for row, c in zip(q, y)]
        mixed = [[0.9999 * row + 1e-4 / 23 for row in rows] for rows in (q, p)]
        divergences += [float((b * (b / a).log()).sum()) for a, b in zip(*mixed)]
        supports += [int((row > 0).sum()) for row in q]
    mean = [sum(values) / len(values) for values in (losses, logs, divergences, supports)]
    return mean[0], math.exp(mean[1]), mean[2], mean[3]


@pytest.mark.parametrize("name", ["gpt2", "bart"])
@torch.no_grad()
def test_the_report_says_what_the_model_does(name):
    batches = loader(tiny_model(name))
    model = sparsify(tiny_model(name), attn="sparsemax", head="entmax15")
    before = measured_by_hand(name, model, batches, 0.01)
    report = calibrate(model, batches, uniform_share=0.01, progress=False)
    after = measured_by_hand(name, model, batches, 0.01)
    for found, expected in ((report.before, before), (report.after, after)):
        values = (found.loss, found.eps_perplexity, found.divergence, found.support)
        assert values == pytest.approx(expected, rel=1e-3)
    assert report.dense.targets == {"gpt2": 16, "bart": 19}[name]


@torch.no_grad()
def test_the_report_of_a_layer_is_that_of_its_weights_on_dense_scores():
    model = sparsify(tiny_model("gpt2"), attn={"decoder": ["entmax15", None]})
    batch = loader(model, num_batches=1)[0]
    (layer,) = calibrate(model, [batch], progress=False).layers
    dense = sparsify(tiny_model("gpt2"), attn="softmax")
    q, p = attentions(model, **batch)[0].double(), attentions(dense, **batch)[0].double()
    assert layer.after.support == pytest.approx(float((q > 0).sum(-1).double().mean()))
    assert layer.after.dense_support == pytest.approx(4)  # of 7 causal positions
    assert layer.after.error == pytest.approx(float((q - p).square().sum(-1).mean()), rel=1e-3)
    divergence = torch.where(q > 0, q * (q / p.clamp(min=1e-30)).clamp(min=1e-30).log(), 0.0).sum(-1).mean()
    assert layer.after.divergence == pytest.approx(float(divergence), rel=1e-3)
    assert (layer.kind, layer.path) == ("decoder", "transformer.h.0.attn")


@torch.no_grad()
def test_settings_are_saved_with_the_model_and_undone_with_it(tmp_path):
    model = tiny_model("bart")
    expected = model(**labelled(model)).logits
    sparsify(model, attn={"encoder": "entmax15", "cross": "sparsemax"}, head="alpha_relu")
    report = calibrate(model, loader(model), progress=False)
    config = sparse_config(model)
    assert config.kinds == ["encoder", "cross"]
    assert config.head.to_dict() == report.head
    assert all(len(choice.temperature) == 4 for choice in config.attention_maps)
    temperatures = {layer.path: layer.temperature for layer in report.layers}
    for _, site in attention_sites(model):
        assert (site.map_config.temperature if site.map_config else None) == temperatures.get(site.path)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    assert sparse_config(loaded) == config
    assert torch.equal(loaded(**labelled(model)).logits, model(**labelled(model)).logits)
    assert torch.equal(unsparsify(model)(**labelled(model)).logits, expected)


def test_a_temperature_for_each_head_is_at_least_as_close():
    reports = [
        calibrate(model, loader(model), per_head=per_head, fit_alpha=False, progress=False)
        for per_head in (False, True)
        for model in [sparsify(tiny_model("gpt2"), attn="sparsemax")]
    ]
    for layer, by_head in zip(*(report.layers for report in reports)):
        assert isinstance(layer.temperature, float)
        assert len(by_head.temperature) == 4
        assert by_head.after.error < layer.after.error


def test_the_same_data_give_the_same_report_and_modes_and_random_state_stay():
    reports = []
    for _ in range(2):
        model = sparsify(tiny_model("bart"), attn="entmax15", head="entmax15").train()
        torch.manual_seed(len(reports))
        state = torch.get_rng_state()
        reports.append(calibrate(model, loader(model), progress=False))
        assert torch.equal(torch.get_rng_state(), state)
        assert all(module.training for module in model.modules())
    assert reports[0] == reports[1]


def test_the_report_can_be_read_and_stored():
    model = sparsify(tiny_model("gpt2"), attn="entmax15", head={"name": "alpha_relu", "tau": 0.3})
    report = calibrate(model, loader(model), progress=False)
    text = str(report)
    for part in (
        "GPT2LMHeadModel on 16 targets held out",
        "eps_kl",
        "dense",
        "before",
        "after",
        "ppl (u 0.0001)",
        "alpha_relu",
        "tau",
    ):
        assert part in text
    assert f"{report.after.eps_perplexity:.2f}" in text
    assert f"{report.after.divergence:.4f}" in text
    assert f"{report.layers[1].after.error:.4f}" in text
    assert f"temperature {' '.join(f'{each:.3g}' for each in report.layers[1].temperature)}" in text
    assert f"edges of attention: {report.edges:.1%}" in text
    assert json.loads(json.dumps(report.to_dict()))["after"]["loss"] == report.after.loss


def test_the_progress_bar_counts_every_forward_call(capsys):
    model = sparsify(tiny_model("gpt2"), attn="entmax15", head="entmax15")
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    calibrate(model, loader(model))
    handle.remove()
    assert f"{len(calls)}/{len(calls)}" in capsys.readouterr().err
    calibrate(model, loader(model), progress=False)
    assert capsys.readouterr().err == ""


def test_scores_of_a_large_batch_are_compared_some_rows_at_a_time(monkeypatch):
    reports, sizes = [], []
    eps_kl = _measure.DIVERGENCES["eps_kl"]
    monkeypatch.setitem(_measure.DIVERGENCES, "eps_kl", lambda q, p: (sizes.append(len(q)), eps_kl(q, p))[1])
    for numbers in (_measure._NUMBERS, 5 * 23):
        monkeypatch.setattr(_measure, "_NUMBERS", numbers)
        model = sparsify(tiny_model("gpt2"), attn="entmax15", head="entmax15")
        sizes.clear()
        reports.append(calibrate(model, loader(model), progress=False))
    assert set(sizes) == {5, 1}  # 16 targets
    whole, in_parts = (report.after for report in reports)
    assert in_parts.targets == whole.targets
    assert (in_parts.loss, in_parts.eps_perplexity, in_parts.divergence, in_parts.support) == pytest.approx(
        (whole.loss, whole.eps_perplexity, whole.divergence, whole.support), rel=1e-5
    )


def test_max_batches_bounds_what_is_read():
    model = sparsify(tiny_model("gpt2"), attn="entmax15")
    assert calibrate(model, loader(model, num_batches=3), max_batches=1, progress=False).dense.targets == 16
    batches = loader(model, num_batches=8)
    assert calibrate(model, batches, max_batches=None, progress=False).dense.targets == 2 * 16


def test_a_learned_alpha_keeps_what_it_has_learned():
    model = sparsify(tiny_model("gpt2"), attn={"name": "entmax", "alpha": {"learned": 1.5}})
    parameter = model.transformer.h[0].attn.sparse_alpha.value
    with torch.no_grad():
        parameter += torch.tensor([-3.0, 0.0, 1.0, 3.0])
    before = parameter.detach().clone()
    calibrate(model, loader(model), progress=False)
    assert model.transformer.h[0].attn.sparse_alpha.value is parameter
    assert torch.equal(parameter, before)
    temperatures = sparse_config(model).attention("decoder", 0).temperature
    assert temperatures[0] < temperatures[3]  # the sparser the map, the more its scores must be held back


def test_inline_attention_and_heads_alone_are_calibrated_too():
    model = sparsify(tiny_inline_model("gptj"), attn="sparsemax")
    report = calibrate(model, loader(model), progress=False)
    assert report.layers
    assert all(layer.after.error < layer.before.error for layer in report.layers)
    model = sparsify(tiny_model("gpt2"), head="sparsemax")
    report = calibrate(model, loader(model), progress=False)
    assert not report.layers
    assert report.after.divergence < report.before.divergence
    assert not sparse_config(model).attn


def test_a_pretrained_heads_offset_no_longer_empties_alpha_relu():
    model = sparsify(with_offset(tiny_model("gpt2"), 60.0), head="alpha_relu")
    report = calibrate(model, loader(model), progress=False)
    assert sparse_config(model).head.centered
    assert report.after.divergence < report.before.divergence / 2
    logits = model(loader(model)[0]["input_ids"], log_probs=False).logits.detach()
    mass = sparse_config(model).head(logits).sum(-1)
    assert 0.3 < float(mass.median()) < 3


class Unlucky(list):
    """A loader whose last batch the model cannot read."""

    def __init__(self, model):
        super().__init__(loader(model))
        self[1]["input_ids"] = self[1]["input_ids"] + 1000


def test_a_failure_leaves_the_model_as_it_was():
    model = sparsify(tiny_model("gpt2"), attn="entmax15", head="entmax15").train()
    before = settings_of(model)
    with pytest.raises(IndexError):
        calibrate(model, Unlucky(model), progress=False)
    assert settings_of(model) == before
    assert model.training
    assert all(site.watches.innermost(module) is None for module, site in attention_sites(model))


def test_what_a_fused_loss_cannot_do_is_refused_after_all(monkeypatch):
    """Soft-capped logits cannot be centered in a fused loss; here the fit asks for it."""
    model = sparsify(tiny_model("gemma2"), head={"name": "alpha_relu", "tau": 0.3}, fused_loss=True)
    before = settings_of(model)
    fit = sparse_config(model).head.with_settings(centered=True)
    monkeypatch.setattr("hf_sparse.conversion._calibrate.fit_head", lambda *_: fit)
    with pytest.raises(ValueError, match="the mean of soft-capped logits needs all of them; pass fused_loss=False"):
        calibrate(model, loader(model), progress=False)
    assert settings_of(model) == before


def test_a_head_without_positions_to_fit_it_on_is_refused():
    model = sparsify(tiny_model("gpt2"), attn="entmax15", head="entmax15")
    before, batches = settings_of(model), loader(model, num_batches=4)
    for batch in batches[:3]:
        batch["labels"] = torch.full_like(batch["labels"], -100)
    for goal in ({}, {"classes": 5}):
        with pytest.raises(ValueError, match="no position counts in the batches that the head is fitted on"):
            calibrate(model, batches, **goal, progress=False)
    assert settings_of(model) == before


def test_a_compiled_model_is_measured_uncompiled_and_stays_compiled():
    calls = []

    def backend(graph, _):
        calls.append(1)
        return graph

    model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    expected = calibrate(copy.deepcopy(model), loader(model), progress=False)
    model.compile(backend=backend)
    assert calibrate(model, loader(model), progress=False) == expected
    assert not calls
    with torch.no_grad():
        model(loader(model)[0]["input_ids"])
    assert calls


class HasNoExample(LlamaForCausalLM):
    """Its input cannot be made up."""

    main_input_name = "words"


def test_a_fused_loss_is_checked_on_the_loaders_own_batch():
    model = HasNoExample(tiny_model("llama").config).eval()
    batches = loader(model)
    sparsify(model, head="entmax15", fused_loss=True, example=batches[0])
    calibrate(model, batches, progress=False)
    assert sparse_config(model).head.temperature != 1


def test_models_and_arguments_that_do_not_fit_are_refused():
    whole = sparsify(tiny_model("bert"), attn="entmax15")
    with pytest.raises(ValueError, match="this BertModel is a part of a sparse BertForMaskedLM, which keeps"):
        calibrate(whole.bert, loader(whole), progress=False)
    dense = tiny_model("gpt2")
    with pytest.raises(ValueError, match="this GPT2LMHeadModel is dense; call sparsify"):
        calibrate(dense, loader(dense), progress=False)
    assert not is_sparse(dense)
    model = sparsify(tiny_model("gpt2"), attn={"name": "entmax15", "temperature": "learned"})
    with pytest.raises(ValueError, match="a temperature of attention is learned"):
        calibrate(model, loader(model), progress=False)
    bounded = sparsify(tiny_model("t5"), attn={"cross": "csparsemax", "encoder": "entmax15"})
    with pytest.raises(ValueError, match="those of csparsemax depend on what earlier queries spent; train the model"):
        calibrate(bounded, loader(bounded), progress=False)
    with pytest.raises(ValueError, match=r"uniform_share must be in \(0, 1\), was 0"):
        calibrate(sparsify(dense, head="entmax15"), loader(dense), uniform_share=0, progress=False)


@pytest.mark.parametrize("settings", [{"attn": "entmax15"}, {"head": "entmax15"}])
def test_a_model_that_gives_nan_is_named_and_left_as_it_was(settings):
    model = sparsify(tiny_model("llama"), **settings)
    with torch.no_grad():
        next(model.model.layers[0].mlp.parameters()).fill_(torch.nan)
    before, dense = settings_of(model), unsparsify(copy.deepcopy(model))
    message = "the output of this LlamaForCausalLM is NaN; look at its weights and inputs"
    with pytest.raises(ValueError, match=message):
        calibrate(model, loader(model), progress=False)
    with pytest.raises(ValueError, match=message):
        compare(dense, loader(dense), **settings)
    assert settings_of(model) == before


def test_figures_come_back_where_calibrated_settings_are_refused_after_all(monkeypatch):
    model = sparsify(tiny_model("gemma2"), head={"name": "alpha_relu", "tau": 0.3}, fused_loss=True)
    sparse_state(model).metrics = {"head_support": 3.0}
    fit = sparse_config(model).head.with_settings(centered=True)
    monkeypatch.setattr("hf_sparse.conversion._calibrate.fit_head", lambda *_: fit)
    with pytest.raises(ValueError, match="the mean of soft-capped logits needs all of them"):
        calibrate(model, loader(model), progress=False)
    assert sparse_state(model).metrics == {"head_support": 3.0}
