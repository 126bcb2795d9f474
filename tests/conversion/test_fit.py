"""Fitted temperatures are those that enumeration finds, and those that were put in."""

import itertools
import math

import pytest
import torch

import hf_sparse.functional as F
from hf_sparse import sparsify
from hf_sparse.attention.site import AttentionSite, attention_sites, trial
from hf_sparse.config import MapConfig
from hf_sparse.conversion._fit import ALPHAS, alpha_of, cheapest, fit_temperatures, levels_of, share_of_edges
from hf_sparse.conversion._fit_head import fit_head
from hf_sparse.conversion._rules import all_softmax
from hf_sparse.conversion._scores import SiteScores, record, squared_distance, support_divergence
from hf_sparse.conversion._temperature import best_temperatures
from tests.conversion.data import loader
from tests.tiny_models import tiny_model


def logits(rows=60, classes=30, scale=3.0, seed=0):
    return scale * torch.randn(rows, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_search_finds_every_heads_own_minimum_to_about_a_percent():
    truth = torch.tensor([0.13, 0.7, 2.0, 480.0], dtype=torch.float64)
    found = best_temperatures(lambda temperatures: (temperatures.log() - truth.log()).abs(), torch.full((4,), 8.0))
    assert found.tolist() == pytest.approx(truth.tolist(), rel=0.012)


def test_the_search_goes_around_temperatures_at_which_a_map_overflows():
    def costs(temperatures):
        return (temperatures.log() - 0.7).abs().masked_fill(temperatures < 1, torch.nan)

    found = best_temperatures(costs, torch.tensor([8.0]))
    assert found.tolist() == pytest.approx([math.exp(0.7)], rel=0.012)


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


def recorded(model, batches, sites=None):
    """Scores of dense attention as calibration records them, and all of them."""
    own = {site.path: site.map_config for _, site in attention_sites(model)}
    seen = {}
    with trial(model, all_softmax(model), lambda site, _, scores: seen.setdefault(site.path, []).append(scores)):
        for batch in batches:
            model(**batch)
    return record(model, batches, len(batches), own, all_softmax(model), lambda batch, given: None), seen


@pytest.mark.parametrize(("name", "kinds"), [("gpt2", 2), ("bart", 6), ("t5", 6)])
@pytest.mark.parametrize("per_head", [False, True])
@torch.no_grad()
def test_attention_gets_the_temperatures_that_enumeration_finds(name, kinds, per_head):
    model = sparsify(tiny_model(name), attn="sparsemax")
    batches = [{name: each for name, each in batch.items() if name != "labels"} for batch in loader(model)]
    if model.config.is_encoder_decoder:
        batches = [{**batch, "decoder_input_ids": batch["input_ids"]} for batch in batches]
    scores, seen = recorded(model, batches)
    assert len(scores) == kinds
    grid = torch.logspace(-0.9, 1.5, 120, dtype=torch.float64).tolist()
    for path, calls in seen.items():
        z = torch.cat([call.double() for call in calls])
        p = z.softmax(-1).nan_to_num()

        def errors(temperature, z=z, p=p):
            return (F.sparsemax(z / temperature) - p).square().sum((0, 2, 3))

        found, means = fit_temperatures(scores[path], MapConfig("sparsemax"), per_head)
        assert len(found) == 4
        own_errors = errors(found.view(-1, 1, 1))
        torch.testing.assert_close(means.error * (z.shape[0] * z.shape[2]), own_errors, rtol=1e-3, atol=1e-6)
        if per_head:
            best = torch.stack([errors(temperature) for temperature in grid]).amin(0)
            assert (own_errors <= best * 1.01 + 1e-9).all()
        else:
            assert len(set(found.tolist())) == 1
            best = min(float(errors(temperature).sum()) for temperature in grid)
            assert float(own_errors.sum()) <= best * 1.01


def made_up(heads=3, queries=40, keys=12, seed=0):
    """Recorded scores of one site: heads of growing sharpness, causal masks."""
    z = torch.randn(1, heads, queries, keys, generator=torch.Generator().manual_seed(seed))
    z = z * torch.linspace(1, 4, heads)[:, None, None]
    z = z.masked_fill(torch.arange(keys) > torch.arange(queries)[:, None], -torch.inf)
    return SiteScores(AttentionSite("a", "decoder", None), torch.nn.Identity(), [z[..., :20, :], z[..., 20:, :]])


def test_means_are_those_of_all_recorded_queries_together():
    scores = made_up()
    z = torch.cat(scores.parts, 2)[0]
    q, p = F.sparsemax(z / 2), z.softmax(-1)
    found = scores.means(MapConfig.parse({"name": "sparsemax", "temperature": 2.0}, "attn"))
    expected = [
        (q - p).square().sum(-1),
        p.square().sum(-1),
        support_divergence(q, p),
        (q > 0).sum(-1),
        (p > 0).sum(-1),
    ]
    for value, by_hand in zip(vars(found).values(), expected):
        torch.testing.assert_close(value, by_hand.double().mean(-1), rtol=1e-5, atol=1e-6)
    by_argument = scores.means(MapConfig("sparsemax"), torch.full((3,), 2.0))
    torch.testing.assert_close(by_argument.error, found.error, rtol=1e-5, atol=1e-7)


def test_keys_that_a_model_masks_by_a_number_do_not_count_at_any_temperature_that_is_tried():
    """A factor of length counts keys that are not 5,000 below the largest; only then are scores divided."""
    scores = made_up()
    scores.parts = [z.clamp(min=-10_000.0) for z in scores.parts]
    by_length = MapConfig.parse({"name": "entmax15", "delta": 0.5, "beta": 0.5}, "attn")
    tried = scores.means(by_length, torch.full((3,), 4.0))
    found = scores.means(by_length.with_settings(temperature=4.0))
    torch.testing.assert_close(vars(tried), vars(found))


@pytest.mark.parametrize("edges", [0.9, 0.6, 0.4])
def test_no_choice_of_levels_on_the_convex_hull_costs_less_for_as_few_edges(edges):
    """Against all 6^3 choices: the price of an edge finds the best of those that some price makes best."""
    levels = {"a": levels_of(made_up(), MapConfig("entmax15"), True, ALPHAS)}
    (one,) = levels.values()
    maps = cheapest(levels, edges)
    own = made_up().means(maps["a"])
    error = float((own.error / own.length).sum())
    kept = float(own.support.sum() / own.dense_support.sum())
    assert kept <= edges
    choices = []
    for choice in itertools.product(range(len(one.alphas)), repeat=3):
        level = torch.tensor(choice)[None]
        choices.append((float(one.supports.gather(0, level).sum()), float(one.errors.gather(0, level).sum())))
    visible = float(one.visible.sum())
    for price in torch.logspace(-4, 1, 60).tolist():
        support, cost = min(choices, key=lambda each, price=price: each[1] + price * each[0])
        assert support / visible > edges or cost >= error - 1e-6


def test_heads_differ_in_alpha_and_temperature_unless_layers_may_not():
    by_head = cheapest({"a": levels_of(made_up(), MapConfig("entmax15"), True, ALPHAS)}, 0.4)["a"]
    by_layer = cheapest({"a": levels_of(made_up(), MapConfig("entmax15"), False, ALPHAS)}, 0.5)["a"]
    assert len(set(by_head.temperature)) == 3
    assert isinstance(by_layer.temperature, float)
    assert by_layer.map_settings == {} or isinstance(by_layer.map_settings["alpha"], float)


def test_colder_maps_reach_goals_that_no_alpha_does_and_what_none_reaches_is_refused():
    scores = made_up()
    with pytest.raises(ValueError, match=r"edges=0\.2 is out of reach: the sparsest of these maps keep 0\.\d+ of"):
        cheapest({"a": levels_of(scores, MapConfig("entmax15"), True, ALPHAS)}, 0.2)
    found = cheapest({"a": levels_of(scores, MapConfig("entmax15"), True, ALPHAS, colder=True)}, 0.2)
    assert share_of_edges({"a": scores}, found) <= 0.2
    assert share_of_edges({"a": scores}, {}) == 1


def test_maps_outside_the_family_keep_what_they_are():
    for given in ("sparsegen_lin", {"name": "entmax", "alpha": [1.2, 1.5, 2.0]}, {"name": "entmax15", "beta": 1.0}):
        map_config = MapConfig.parse(given, "attn")
        assert alpha_of(map_config) is None
        levels = levels_of(made_up(), map_config, True, ALPHAS)
        assert levels.alphas == (None,)
        assert levels.chosen(torch.zeros(3, dtype=torch.long)).map_settings == map_config.map_settings
    assert alpha_of(MapConfig("sparsemax")) == 2.0


def test_no_level_is_chosen_at_which_a_map_overflows():
    map_config = MapConfig.parse("sparsegen_exp", "attn")
    levels = levels_of(made_up(), map_config, True, colder=True)
    assert levels.errors.isinf().any()
    assert not levels.errors.isnan().any()
    chosen = cheapest({"a": levels}, 0.5)["a"]
    assert made_up().means(chosen).error.isfinite().all()


def test_the_sample_leaves_padding_out_and_spreads_over_the_data():
    model = sparsify(tiny_model("bert"), attn="entmax15")
    ids = torch.randint(5, 20, (4, 12), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(12) < torch.tensor([[12], [9], [6], [3]])).long()
    with torch.no_grad():
        scores = sampled(model, [{"input_ids": ids, "attention_mask": mask}], 1)
        short = [sampled(model, [{"input_ids": ids[i : i + 1, :n]}], 1)
                 for i, n in enumerate((12, 9, 6, 3))]  # fmt: skip
    for path, each in scores.items():
        assert each.parts[0].shape[2] == 30
        alone = torch.stack([one[path].means(MapConfig("entmax15")).error * n for one, n in zip(short, (12, 9, 6, 3))])
        torch.testing.assert_close(each.means(MapConfig("entmax15")).error, alone.sum(0) / 30, rtol=1e-4, atol=1e-7)


def test_the_sample_does_not_meet_the_same_positions_of_every_row():
    """48 of 96 rows of 16 positions, every 32nd at equal distances: the mean of the visible keys is that of all."""
    model = sparsify(tiny_model("gpt2"), attn="entmax15")
    ids = torch.randint(5, 20, (96, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        scores = sampled(model, [{"input_ids": rows} for rows in ids.split(48)], 2)
    visible = scores[paths(model)[0]].means(MapConfig("entmax15")).dense_support
    assert visible.tolist() == pytest.approx([8.5] * 4, abs=1.2)


def paths(model):
    return [site.path for _, site in attention_sites(model)]


def sampled(model, batches, num_batches):
    return record(model, batches, num_batches, paths(model), all_softmax(model), lambda *_: None)


def test_memory_and_time_are_bounded_by_the_sample(monkeypatch):
    model = sparsify(tiny_model("gpt2"), attn="entmax15")
    batches = [{"input_ids": torch.randint(5, 20, (4, 7))} for _ in range(3)]
    monkeypatch.setattr("hf_sparse.conversion._scores._QUERIES", 6)
    with torch.no_grad():
        scores = sampled(model, batches, 3)
    assert [part.shape for part in scores[paths(model)[0]].parts] == [(1, 4, 2, 7)] * 3
    visible = [(part > -torch.inf).sum(-1)[0, 0].tolist() for part in scores[paths(model)[0]].parts]
    assert len({tuple(each) for each in visible}) > 1  # not the same places of every batch
    monkeypatch.setattr("hf_sparse.conversion._scores._NUMBERS", 0)
    with torch.no_grad():
        scores = sampled(model, batches, 3)
    assert scores[paths(model)[0]].parts[0].shape[2] == 1
