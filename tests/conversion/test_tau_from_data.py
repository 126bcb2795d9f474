"""tau from data is the mean of the thresholds entmax finds, row by row."""

import logging

import pytest
import torch

import hf_sparse.functional as F
from hf_sparse import estimate_tau_from_data, is_sparse, sparsify
from hf_sparse.functional import estimate_tau_from_head
from tests.conversion.data import loader
from tests.model.test_head import scored as by_hand
from tests.tiny_models import tiny_model


def mean_threshold(name, model, batches, alpha, transform):
    thresholds = []
    for batch in batches:
        z, y = by_hand(name, model(**batch).logits, batch["labels"])
        z = transform(z[y != -100].double())
        # The largest weight gives the threshold away: p_1 = [(alpha - 1) z_1 - tau] ^ (1 / (alpha - 1)).
        thresholds.append((alpha - 1) * z.amax(-1) - F.entmax(z, alpha).amax(-1) ** (alpha - 1))
    return float(torch.cat(thresholds).mean())


@pytest.mark.parametrize("name", ["gpt2", "bart", "bert"])
@pytest.mark.parametrize("sparse", [False, True])
@torch.no_grad()
def test_it_is_the_mean_over_the_targets_that_count(name, sparse):
    model = tiny_model(name)
    batches = loader(model)
    if sparse:
        sparsify(model, attn="entmax15")
    options = {
        "plain": ({}, 1.5, lambda z: z),
        "alpha": ({"alpha": 2.0}, 2.0, lambda z: z),
        "temperature": ({"temperature": 2.5}, 1.5, lambda z: z / 2.5),
        "centered": ({"centered": True}, 1.5, lambda z: z - z.mean(-1, keepdim=True)),
    }
    found = {}
    for key, (given, alpha, transform) in options.items():
        found[key] = estimate_tau_from_data(model, batches, **given, progress=False)
        assert found[key] == pytest.approx(mean_threshold(name, model, batches, alpha, transform), abs=1e-5)
    assert len({round(value, 4) for value in found.values()}) == 4
    assert is_sparse(model) is sparse


def test_it_agrees_with_the_estimate_from_weights_where_logits_are_normal():
    model = tiny_model("gpt2", vocab_size=2000)
    batches = [{**batch, "labels": batch["input_ids"]} for batch in loader(model, rows=16)]
    from_weights = estimate_tau_from_head(model.lm_head, 1.5, hidden_rms=1.0)
    assert estimate_tau_from_data(model, batches, centered=True, progress=False) == pytest.approx(
        from_weights, rel=0.15
    )


def test_an_open_temperature_is_refused():
    model = tiny_model("gpt2")
    with pytest.raises(ValueError, match=r'temperature must be a number, was "auto"; balanced_temperature\(alpha'):
        estimate_tau_from_data(model, loader(model), temperature="auto", progress=False)


def test_it_is_logged(caplog):
    model = tiny_model("gpt2")
    with caplog.at_level(logging.INFO, logger="hf_sparse"):
        tau = estimate_tau_from_data(model, loader(model), progress=False)
        sparsify(model, head="alpha_relu")
    assert f"tau = {tau:.4f}, the mean over 32 targets" in caplog.messages[0]
    assert "estimated from the weights of the head" in caplog.messages[1]


@pytest.mark.filterwarnings("error")
def test_one_target_has_no_deviation(caplog):
    model = tiny_model("gpt2")
    with caplog.at_level(logging.INFO, "hf_sparse"):
        estimate_tau_from_data(model, [{"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([[1, 2]])}])
    assert "1 targets (standard deviation 0.0000)" in caplog.text


def test_bad_arguments_are_refused():
    model = tiny_model("gpt2")
    with pytest.raises(ValueError, match=r"alpha must be a number from 1.001 to 5, was 1\.0"):
        estimate_tau_from_data(model, loader(model), 1.0, progress=False)
    with pytest.raises(ValueError, match=r"temperature must be a number from 0.0001 to 1000000 or \"auto\", was 0"):
        estimate_tau_from_data(model, loader(model), temperature=0, progress=False)
