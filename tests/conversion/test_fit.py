"""Fitted temperatures are those that enumeration finds, and those that were put in."""

import pytest
import torch

import hf_sparse.functional as F
from hf_sparse import sparsify
from hf_sparse.attention.site import attention_sites, trial
from hf_sparse.config import MapConfig
from hf_sparse.conversion._fit import fit_attention, fit_head, head_data
from hf_sparse.conversion._measure import squared_distance, support_divergence
from hf_sparse.conversion._rules import all_softmax
from hf_sparse.conversion._temperature import ROUNDS, TemperatureSearch
from tests.conversion.data import loader
from tests.tiny_models import tiny_model


def logits(rows=60, classes=30, scale=3.0, seed=0):
    return scale * torch.randn(rows, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_search_finds_every_heads_own_minimum_to_about_a_percent():
    truth = torch.tensor([0.13, 0.7, 2.0, 480.0], dtype=torch.float64)
    search = TemperatureSearch(heads=4)
    for _ in range(ROUNDS):
        for point, temperatures in enumerate(search.candidates):
            search.add(point, (temperatures.log() - truth.log()).abs())
        search.zoom()
    assert search.best == pytest.approx(truth.tolist(), rel=0.012)


def test_divergences_equal_their_sums():
    q, p = F.sparsemax(logits(5, 4)), logits(5, 4).softmax(-1)
    by_hand = [sum(float(a * (a / b).log()) for a, b in zip(*rows) if a > 0) for rows in zip(q, p)]
    torch.testing.assert_close(support_divergence(q, p), torch.tensor(by_hand, dtype=torch.float64))
    assert squared_distance(torch.tensor([1.0, 0.0]), torch.tensor([0.4, 0.6])) == pytest.approx(0.72)
    assert support_divergence(torch.zeros(3), torch.zeros(3)) == 0


@pytest.mark.parametrize("true", [0.4, 3.3])
@pytest.mark.parametrize("head", ["entmax15", "sparsemax", {"name": "entmax", "alpha": 1.3}], ids=str)
def test_a_head_gets_back_the_temperature_that_made_the_target(head, true):
    choice, z = MapConfig.parse(head, "head"), logits()
    target = choice.with_settings(temperature=true)(z)
    assert fit_head(choice, z, target).temperature == pytest.approx(true, rel=0.012)


@pytest.mark.parametrize("head", ["entmax15", {"name": "entmax", "alpha": 1.2}], ids=str)
def test_at_the_fitted_temperature_the_mean_scores_agree(head):
    """The derivative of the loss by 1 / T is E_q[z] - E_p[z]; it changes sign at the fit."""
    choice, z = MapConfig.parse(head, "head"), logits()
    p = z.softmax(-1)
    best = fit_head(choice, z, p).temperature

    def excess(temperature):
        return float(((choice.with_settings(temperature=temperature)(z) - p) * z).sum())

    assert excess(best * 0.97) > 0 > excess(best * 1.03)


def test_alpha_relu_gets_the_mean_threshold_at_its_temperature():
    z = logits()
    fitted = fit_head(MapConfig.parse({"name": "alpha_relu", "tau": 99.0}, "head"), z, z.softmax(-1))
    x = z - z.mean(-1, keepdim=True) if fitted.centered else z
    x = x / fitted.temperature
    thresholds = x.amax(-1) / 2 - F.entmax15(x).amax(-1).sqrt()
    assert fitted.map_settings["tau"] == pytest.approx(float(thresholds.mean()), abs=1e-9)
    losses = []
    for temperature in torch.logspace(-0.9, 1.5, 200).tolist():
        for offset in (z.mean(-1, keepdim=True), 0.0):
            x = (z - offset) / temperature
            tau = float((x.amax(-1) / 2 - F.entmax15(x).amax(-1).sqrt()).mean())
            u = x / 2 - tau
            p = z.softmax(-1)
            conjugate = 2 / 3 * u.clamp(min=0) ** 3
            losses.append(float((conjugate - 2 * p * u + 4 / 3 * p**1.5).sum(-1).mean()))
    own = float(fitted.loss()(z, z.softmax(-1)))
    assert own <= min(losses) * 1.001
    assert own >= min(losses) * 0.999


@pytest.mark.parametrize("centered", [True, False])
def test_alpha_relu_is_centered_where_that_is_closer(centered):
    """An offset from row to row speaks for it; log-probabilities of rows of different sharpness against it."""
    z = logits(200)
    offset = 20 * torch.randn(200, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sharpness = torch.linspace(0.2, 2, 200, dtype=torch.float64)[:, None]
    z = z + offset if centered else (z * sharpness).log_softmax(-1)
    asked = MapConfig.parse({"name": "alpha_relu", "tau": 0.0, "centered": not centered}, "head")
    assert fit_head(asked, z, z.softmax(-1)).centered is centered


def test_softmax_stays_as_it_is():
    choice = MapConfig.parse({"name": "softmax", "temperature": 1.7}, "head")
    assert fit_head(choice, logits(), logits().softmax(-1)) == choice


@pytest.mark.parametrize(("name", "kinds"), [("gpt2", 2), ("bart", 6), ("t5", 6)])
@pytest.mark.parametrize("per_head", [False, True])
@torch.no_grad()
def test_attention_gets_the_temperatures_that_enumeration_finds(name, kinds, per_head):
    model = sparsify(tiny_model(name), attn="sparsemax")
    batches = loader(model)
    seen = {}
    with trial(model, all_softmax(model), lambda site, _, scores: seen.setdefault(site.path, []).append(scores)):
        for batch in batches:
            model(**batch)
    own = {site.path: site.map_config for _, site in attention_sites(model)}
    fitted = fit_attention(model, batches, own, per_head, lambda: None)
    assert len(fitted) == kinds
    grid = torch.logspace(-0.9, 1.5, 120, dtype=torch.float64).tolist()
    for path, calls in seen.items():
        z = torch.cat([call.double() for call in calls])
        p = z.softmax(-1).nan_to_num()

        def errors(temperature, z=z, p=p):
            return (F.sparsemax(z / temperature) - p).square().sum((0, 2, 3))

        found = fitted[path].temperature
        if per_head:
            assert len(found) == 4
            own_errors = errors(torch.tensor(found, dtype=torch.float64).view(-1, 1, 1))
            best = torch.stack([errors(temperature) for temperature in grid]).amin(0)
            assert (own_errors <= best * 1.01 + 1e-9).all()
        else:
            best = min(float(errors(temperature).sum()) for temperature in grid)
            assert float(errors(found).sum()) <= best * 1.01


@torch.no_grad()
def test_sites_left_out_and_softmax_keep_what_they_had():
    model = sparsify(tiny_model("gpt2"), attn={"decoder": ["softmax", "entmax15"]})
    own = {site.path: site.map_config for _, site in attention_sites(model)}
    first, second = own
    fitted = fit_attention(model, loader(model), {first: own[first], second: None}, False, lambda: None)
    assert fitted == {first: MapConfig("softmax"), second: None}
    assert [site.map_config for _, site in attention_sites(model)] == list(own.values())


@torch.no_grad()
def test_the_head_is_fitted_under_sparse_attention_on_what_there_is_room_for(monkeypatch):
    model = sparsify(tiny_model("gpt2"), attn="sparsemax", head="entmax15")
    batches = loader(model)
    own = {site.path: site.map_config for _, site in attention_sites(model)}
    z, p = head_data(model, batches, own, lambda: None)
    kept = [batch["labels"][:, 1:] != -100 for batch in batches]
    sparse = torch.cat([model(**batch).logits[:, :-1][keep] for batch, keep in zip(batches, kept)])
    dense = torch.cat([tiny_model("gpt2")(**batch).logits[:, :-1][keep] for batch, keep in zip(batches, kept)])
    torch.testing.assert_close(z, sparse)
    torch.testing.assert_close(p, dense.softmax(-1), atol=1e-5, rtol=1e-4)
    monkeypatch.setattr("hf_sparse.conversion._fit._KEPT_LOGITS", 2 * 5 * 23)
    few, _ = head_data(model, batches, own, lambda: None)
    assert len(few) == 10
    assert torch.equal(few[0], z[0])
    assert torch.equal(few[-1], z[-1])
