"""A head fitted for a goal: coverage that is conformal, or a mean number of classes."""

import math

import pytest
import torch
from transformers import BertForSequenceClassification

import hf_sparse.functional as F
from hf_sparse import calibrate, probabilities, sparse_config, sparsify
from hf_sparse.config import MapConfig
from hf_sparse.config.settings import COLDEST
from hf_sparse.conversion._batches import Answer, split
from hf_sparse.conversion._closeness import DIVERGENCES, eps_kl, lost_variance
from hf_sparse.conversion._fit_head import Goal, entmax_head, for_classes, for_coverage, mean_classes
from hf_sparse.conversion._head_rows import HeadRows, entry_temperature
from tests.conversion.data import loader
from tests.tiny_models import tiny_model


def draw(rows, classes=30, scale=3.0, seed=0):
    """Logits, and classes drawn from their softmax."""
    generator = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    return z, torch.multinomial(z.softmax(-1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("alpha", [1.02, 1.1, 1.5, 2.0])
def test_a_class_is_in_the_support_above_its_entry_temperature_and_not_below(alpha):
    z, y = draw(50)
    entry = entry_temperature(z, y, alpha)
    assert (entry[y == z.argmax(-1)] == 0).all()
    for factor, inside in ((1.001, True), (0.999, False)):
        temperature = (entry * factor).clamp(min=1e-3)[:, None]
        p = F.entmax(z / temperature, alpha).gather(-1, y[:, None])[:, 0]
        later = y != z.argmax(-1)
        if alpha > 1.05 or not inside:  # just above it, at alpha near 1, the weight is below the smallest number
            assert ((p > 0) == inside)[later].all()


def test_ties_for_the_likeliest_class_are_in_every_support():
    assert entry_temperature(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([1]), 1.5).tolist() == [0.0]


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_the_support_holds_the_class_as_often_as_promised_over_exchangeable_draws(coverage):
    """Exactly: over all draws of n + 1 the chance is ceil((n + 1) coverage) / (n + 1), here 200 draws of 60 + 40."""
    hits = []
    for seed in range(200):
        z, y = draw(100, seed=seed)
        head = for_coverage({1.5: entry_temperature(z[:60], y[:60], 1.5)}, coverage, z[:60])
        hits.append((head(z[60:]).gather(-1, y[60:, None]) > 0).double().mean())
    found = float(torch.stack(hits).mean())
    assert found == pytest.approx(math.ceil(61 * coverage) / 61, abs=0.015)


def test_coverage_takes_the_alpha_with_the_fewest_classes():
    z, y = draw(200)
    entries = {alpha: entry_temperature(z, y, alpha) for alpha in (1.1, 1.5, 2.0)}
    sizes = {alpha: mean_classes(for_coverage({alpha: each}, 0.9, z), z) for alpha, each in entries.items()}
    assert mean_classes(for_coverage(entries, 0.9, z), z) == min(sizes.values())
    assert len(set(sizes.values())) == 3


def test_too_few_targets_for_a_promise_are_refused():
    z, y = draw(98)
    with pytest.raises(ValueError, match=r"coverage=0\.99 takes at least 99 targets, the loader has 98; give more"):
        for_coverage({1.5: entry_temperature(z, y, 1.5)}, 0.99, z)
    z, y = draw(99)
    head = for_coverage({1.5: entry_temperature(z, y, 1.5)}, 0.99, z)
    assert (head(z).gather(-1, y[:, None]) > 0).all()


def test_coverage_of_a_model_that_is_right_more_often_needs_no_temperature():
    z, _ = draw(40)
    y = z.argmax(-1)
    y[:2] = z[:2].argmin(-1)
    head = for_coverage({alpha: entry_temperature(z, y, alpha) for alpha in (1.2, 2.0)}, 0.9, z)
    assert (head(z).gather(-1, y[:, None])[2:] > 0).all()
    assert mean_classes(head, z) == 1


@pytest.mark.parametrize("labelled", [True, False])
def test_as_many_classes_as_asked_for_at_the_alpha_that_costs_least(labelled):
    z, y = draw(300)
    p = z.softmax(-1)
    head = for_classes((1.1, 1.5, 2.0), 6.0, z, y if labelled else None, p)
    assert 5.8 < mean_classes(head, z) <= 6.0
    costs = {}
    for alpha in (1.1, 1.5, 2.0):
        one = for_classes((alpha,), 6.0, z, None, p)
        q = one(z)
        gold = ((1 - 1e-4) * q.gather(-1, y[:, None]) + 1e-4 / 30).log().mean()
        costs[alpha] = -float(gold) if labelled else float(eps_kl(q, p).mean())
    assert head.map_settings["alpha"] == min(costs, key=costs.get)


def test_ranks_and_numbers_of_targets_are_whole_where_their_products_are_rounded():
    z, _ = draw(10)
    seventh = for_coverage({1.5: torch.arange(1.0, 100.0)}, 0.07, z)  # 100 * 0.07 > 7
    assert 7 < seventh.temperature < 7.001  # above it, where the class has weight
    with pytest.raises(ValueError, match=r"coverage=0\.9 takes at least 9 targets, the loader has 8"):
        for_coverage({1.5: torch.arange(1.0, 9.0)}, 0.9, z)


def test_the_alpha_of_the_head_is_tried_among_others():
    head = MapConfig.parse({"name": "entmax", "alpha": 1.4}, "head")
    assert Goal(classes=3).check(head, fit_alpha=True) == (1.1, 1.2, 1.3, 1.4, 1.5, 2.0)


def test_an_alpha_that_leaves_too_many_classes_is_passed_over():
    z = torch.tensor([[5 * COLDEST, 0.0, -1.0]])
    assert for_classes((1.1, 2.0), 1.0, z, None, z.softmax(-1)).map_settings["alpha"] == 2


def test_more_classes_than_there_are_are_refused():
    z, y = draw(10)
    with pytest.raises(ValueError, match="classes must be at most 30, the number there are, was 31"):
        for_classes((1.5,), 31, z, y, z.softmax(-1))


def test_fewer_classes_than_have_the_same_score_are_refused():
    z, y = draw(10)
    z[:, :4] = 100.0
    with pytest.raises(ValueError, match="classes=2 is out of reach: at the lowest temperature 4 are possible"):
        for_classes((1.1, 1.5), 2.0, z, y, z.softmax(-1))
    assert mean_classes(for_classes((1.1, 1.5), 4.0, z, y, z.softmax(-1)), z) == 4


@pytest.mark.parametrize("scale", [1e-4, 1e5])
def test_logits_of_any_scale_get_as_many_classes_as_asked_for(scale):
    z, y = draw(300)
    head = for_classes((1.5,), 6.0, scale * z, y, z.softmax(-1))
    assert 5.8 < mean_classes(head, scale * z) <= 6.0


def test_calibrate_lands_the_goal_in_the_model_its_report_and_its_card():
    model = sparsify(tiny_model("gpt2"), head="entmax15")
    batches = loader(model, num_batches=8, rows=6)
    report = calibrate(model, batches, coverage=0.9, progress=False)
    head = sparse_config(model).head
    assert head.to_dict() == report.head
    assert report.coverage == 0.9
    assert "coverage 0.9: for targets exchangeable with the loader's" in str(report)
    assert model._sparse_state.metrics["head_coverage"] == 0.9
    report = calibrate(model, batches, classes=5, progress=False)
    assert not model._sparse_state.metrics
    with torch.no_grad():
        support = [(probabilities(model, model(input_ids=b["input_ids"]).logits) > 0).sum(-1) for b in batches]
    assert 3 < float(torch.cat(support).double().mean()) < 7
    assert report.coverage is None


@pytest.mark.parametrize("goal", [{"coverage": 0.9}, {"classes": 5}])
def test_a_head_keeps_its_alpha_where_asked(goal):
    model = sparsify(tiny_model("gpt2"), head={"name": "entmax", "alpha": 1.7})
    batches = loader(model, num_batches=8, rows=6)
    calibrate(model, batches, **goal, progress=False)
    assert sparse_config(model).head.map_settings["alpha"] != 1.7
    model = sparsify(tiny_model("gpt2"), head={"name": "entmax", "alpha": 1.7})
    before = sparse_config(model).head.temperature
    report = calibrate(model, batches, **goal, fit_alpha=False, progress=False)
    assert report.head["alpha"] == 1.7
    assert report.head["temperature"] != before


@pytest.mark.parametrize("attn", ["entmax15", {"name": "entmax15", "temperature": "learned"}, "sigmoid"], ids=str)
@pytest.mark.parametrize("goal", [{"coverage": 0.9}, {"classes": 5}, {}])
@torch.no_grad()
def test_attention_stays_as_it_is_where_the_head_alone_is_fitted(attn, goal):
    model = sparsify(tiny_model("gpt2"), attn=attn, head={"name": "entmax15", "temperature": 3.0})
    batches = loader(model, num_batches=8, rows=6)
    before, maps = model(**batches[0]).logits, sparse_config(model).to_dict()["attn"]
    report = calibrate(model, batches, **goal, fit_attention=False, progress=False)
    assert sparse_config(model).to_dict()["attn"] == maps
    torch.testing.assert_close(model(**batches[0]).logits, before, rtol=0, atol=0)
    assert report.head["temperature"] != 3.0
    assert report.layers == []
    # What it is compared with is softmax under the same attention.
    softmax = sparsify(tiny_model("gpt2"), attn=attn)
    softmax.load_state_dict(model.state_dict())
    losses = [float(softmax(**batch).loss) for batch in split(batches)[1]]
    assert report.dense.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert report.dense.divergence == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("maps", "given", "message"),
    [
        ({"attn": "entmax15"}, {}, "fits the head alone, and this model's is dense"),
        ({"head": "entmax15"}, {"edges": 0.2}, "edges is a goal of attention, which fit_attention=False leaves"),
        ({"head": "entmax15"}, {"fit_attention": 0}, "fit_attention must be True or False, was 0"),
    ],
)
def test_the_head_alone_needs_a_sparse_head_and_no_goal_of_attention(maps, given, message):
    model = sparsify(tiny_model("gpt2"), **maps)
    with pytest.raises((ValueError, TypeError), match=message):
        calibrate(model, loader(model), **{"fit_attention": False, "progress": False, **given})


def test_goals_need_a_head_of_the_family_labels_and_sense():
    model = sparsify(tiny_model("gpt2"), head="entmax15")
    unlabelled = [{"input_ids": batch["input_ids"]} for batch in loader(model)]
    with pytest.raises(ValueError, match="batch 0 of the loader has no labels, and coverage needs them"):
        calibrate(model, unlabelled, coverage=0.9, progress=False)
    with pytest.raises(ValueError, match="coverage and classes are two goals for one head; give one of them"):
        calibrate(model, unlabelled, coverage=0.9, classes=5, progress=False)
    for head in (None, "alpha_relu", "sparsegen_lin", {"name": "entmax", "alpha": 1.0}):
        other = sparsify(tiny_model("gpt2"), attn="entmax15", head=head)
        with pytest.raises(ValueError, match="choose alpha and temperature of a head of the entmax family"):
            calibrate(other, unlabelled, classes=5, progress=False)
    classifier = sparsify(BertForSequenceClassification(tiny_model("bert").config), attn="entmax15")
    with pytest.raises(ValueError, match="BertForSequenceClassification has none; leave them out"):
        calibrate(classifier, unlabelled, coverage=0.9, progress=False)


def test_rows_are_kept_as_many_as_there_is_room_for(monkeypatch):
    monkeypatch.setattr("hf_sparse.conversion._head_rows._KEPT_LOGITS", 2 * 5 * 30)
    rows, (z, y) = HeadRows(2), draw(40)
    for _ in range(2):
        rows.add(Answer(z, y, True))
    assert rows.logits.shape == (10, 30)
    assert torch.equal(rows.logits[0], z[0])
    assert torch.equal(rows.logits[4], z[-1])
    assert torch.equal(rows.targets[:5], y[[0, 9, 19, 29, 39]])


def test_divergences_equal_their_sums():
    q, p = F.sparsemax(draw(5)[0]), draw(5)[0].softmax(-1)
    mixed_q, mixed_p = 0.9999 * q + 1e-4 / 30, 0.9999 * p + 1e-4 / 30
    torch.testing.assert_close(eps_kl(q, p), (mixed_p * (mixed_p / mixed_q).log()).sum(-1))
    m = (q + p) / 2
    by_hand = [
        sum(float(a * (a / c).log()) / 2 for a, c in zip(x, m_row) if a > 0)
        + sum(float(b * (b / c).log()) / 2 for b, c in zip(y, m_row))
        for x, y, m_row in zip(q, p, m)
    ]
    torch.testing.assert_close(DIVERGENCES["js"](q, p), torch.tensor(by_hand, dtype=torch.float64))
    h = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    lost, variance = lost_variance(h + torch.tensor([[0.5, 0.0], [0.0, 0.0]]), h)
    assert (float(lost), float(variance)) == (0.25, 10.0)


def test_confident_rows_prefer_the_truth_to_one_class_which_kl_over_the_support_does_not():
    """p is sure of one class of ten; q keeps it alone, or both likely ones: only eps_kl ranks them as the data do."""
    p = torch.tensor([0.9, 0.08, *[0.0025] * 8])
    one, two = torch.eye(10)[0], torch.tensor([0.7, 0.3, *[0.0] * 8])
    kl = [float((q[q > 0] * (q[q > 0] / p[q > 0]).log()).sum()) for q in (one, two)]
    assert kl[0] < kl[1]
    assert eps_kl(two, p) < eps_kl(one, p)


def test_the_head_keeps_alpha_and_temperature_to_seven_digits():
    assert entmax_head(1.2, 1.23456789).temperature == 1.234568
