"""Metrics of distributions against values worked out by hand, and every way to call them wrongly."""

import math

import pytest
import torch

from hf_sparse import metrics
from hf_sparse.functional import alpha_relu

P = torch.tensor([[0.7, 0.3, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
X = torch.tensor([0, 1, 2])
SCORED = [
    metrics.sparsemax_score,
    metrics.jensen_shannon,
    lambda p, target, **options: metrics.eps_perplexity(p, target, 0.01, **options),
]


def test_support_size_counts_nonzeros_along_dim():
    assert metrics.support_size(P).tolist() == [2, 1, 3]
    assert metrics.support_size(P, dim=0).tolist() == [3, 2, 1]


def test_eps_perplexity_by_hand():
    expected = math.exp(-(math.log(0.8 / 1.3) + math.log(0.1 / 1.3) + math.log(0.6 / 1.3)) / 3)
    assert metrics.eps_perplexity(P, X, eps=0.1).item() == pytest.approx(expected)


def test_a_share_of_the_uniform_distribution_is_mixed_in():
    p = torch.tensor([[0.8, 0.2, 0.0], [0.0, 1.0, 0.0]])
    mixed = [0.9 * 0.8 + 0.1 / 3, 0.1 / 3]
    value = metrics.eps_perplexity(p, torch.tensor([0, 2]), uniform_share=0.1)
    assert value.item() == pytest.approx(math.exp(-sum(map(math.log, mixed)) / 2))


def test_eps_perplexity_tends_to_perplexity():
    p = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64)
    value = metrics.eps_perplexity(p, torch.tensor([0, 0]), eps=1e-12)
    assert value.item() == pytest.approx(math.sqrt(8))


def test_sparsemax_score_by_hand():
    expected = [1 - (0.09 + 0.09) / 2, 1 - (1 + 1) / 2, 1 - (0.04 + 0.09 + 0.25) / 2]
    assert metrics.sparsemax_score(P, X, reduction="none").tolist() == pytest.approx(expected)
    assert metrics.sparsemax_score(P, X).item() == pytest.approx(sum(expected) / 3)


def test_jensen_shannon_by_hand():
    def against_one_hot(p):
        return math.log(2) - ((1 + p) * math.log(1 + p) - (p * math.log(p) if p else 0)) / 2

    expected = [against_one_hot(0.7), math.log(2), against_one_hot(0.5)]
    assert metrics.jensen_shannon(P, X, reduction="none").tolist() == pytest.approx(expected)


def test_jensen_shannon_of_class_equals_that_of_its_one_hot():
    one_hot = torch.nn.functional.one_hot(X, 3).double()
    by_class = metrics.jensen_shannon(P, X, reduction="none")
    torch.testing.assert_close(metrics.jensen_shannon(P, one_hot, reduction="none"), by_class)
    assert metrics.jensen_shannon(P, one_hot).item() == pytest.approx(by_class.mean().item())


def test_jensen_shannon_is_symmetric_and_zero_on_equals():
    q = P.flip(0)
    torch.testing.assert_close(metrics.jensen_shannon(P, q), metrics.jensen_shannon(q, P))
    assert metrics.jensen_shannon(P, P).item() == pytest.approx(0, abs=1e-15)


def test_jensen_shannon_stays_in_its_range_in_float32():
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(1000, 10, generator=generator).softmax(-1)
    near = (p + 1e-6 * torch.randn(1000, 10, generator=generator)).clamp(min=0)
    apart = torch.where(torch.arange(10) < 5, p, 0.0)
    for other, mine in ((near, p), (apart.flip(-1) / apart.flip(-1).sum(-1, keepdim=True), apart)):
        divergence = metrics.jensen_shannon(mine / mine.sum(-1, keepdim=True), other, reduction="none")
        assert divergence.min() >= 0
        assert divergence.max() <= math.log(2) + torch.finfo(torch.float32).eps


def test_self_normalization_sum_of_alpha_relu():
    z = torch.tensor([[3.0, 2.0, 0.0]], dtype=torch.float64)
    assert metrics.self_normalization_sum(alpha_relu(z, 1.5, 0.5)).tolist() == [1.25]
    assert metrics.self_normalization_sum(P, dim=0).tolist() == pytest.approx([1.9, 0.6, 0.5])


def test_self_normalization_sum_of_half_precision_is_summed_in_float32():
    p = torch.full((1, 1000), 1 / 1024, dtype=torch.bfloat16)
    total = metrics.self_normalization_sum(p)
    assert total.dtype == torch.float32
    assert total.item() == 1000 / 1024


def test_logit_norm_by_hand():
    z = torch.tensor([[1.0, 2.0, 2.0], [5.0, 5.0, 5.0]])
    assert metrics.logit_norm(z).tolist() == pytest.approx([3.0, math.sqrt(75)])
    assert metrics.logit_norm(z, centered=True).tolist() == pytest.approx([math.sqrt(2 / 3), 0.0])
    assert metrics.logit_norm(z, dim=0).tolist() == pytest.approx([math.sqrt(26), math.sqrt(29), math.sqrt(29)])
    assert metrics.logit_norm(z, dim=0, centered=True).tolist() == pytest.approx([math.sqrt(8), *[math.sqrt(4.5)] * 2])


@pytest.mark.parametrize("metric", [
    metrics.logit_norm,
    lambda p: metrics.sparsemax_score(p, torch.tensor([0])),
    lambda p: metrics.jensen_shannon(p, p.flip(-1).double()),
    lambda p: metrics.jensen_shannon(p.flip(-1).double(), p),
])  # fmt: skip
def test_half_precision_is_measured_in_a_wider_one(metric):
    p = torch.linspace(0, 1, 300).softmax(-1)[None].bfloat16()
    assert torch.equal(metric(p), metric(p.float()))


def test_weights_without_values_are_not_looked_at():
    assert metrics.support_size(torch.empty(2, 3, device="meta")).shape == (2,)


@pytest.mark.parametrize("metric", SCORED)
def test_ignored_targets_do_not_count(metric):
    ignored = metric(P, torch.tensor([0, -100, 2]))
    torch.testing.assert_close(ignored, metric(P[[0, 2]], X[[0, 2]]))
    torch.testing.assert_close(metric(P, torch.tensor([0, 7, 2]), ignore_index=7), ignored)
    assert metric(P, torch.full((3,), -100)).isnan()


@pytest.mark.parametrize("metric", SCORED)
def test_leading_dimensions_are_rows(metric):
    torch.testing.assert_close(metric(P.reshape(1, 3, 3), X.reshape(1, 3)), metric(P, X))


@pytest.mark.parametrize("metric", SCORED)
@pytest.mark.parametrize("label", [156, 50])
def test_targets_in_few_bits_are_the_classes_that_they_name(metric, label):
    p = torch.arange(300.0)[None] / 44_850  # -100 is 156 in 8 bits, and 300 is 44
    torch.testing.assert_close(metric(p, torch.tensor([label], dtype=torch.uint8)), metric(p, torch.tensor([label])))


@pytest.mark.parametrize("metric", SCORED)
def test_wrong_targets_are_refused(metric):
    with pytest.raises(IndexError, match=r"target must be in \[0, 3\) or -100 \(ignored\), was 3"):
        metric(P, torch.tensor([0, 1, 3]))
    with pytest.raises(ValueError, match=r"must agree, were \(3, 3\) and \(2,\)"):
        metric(P, X[:2])
    with pytest.raises(TypeError, match="target must hold class indices"):
        metric(P, X > 0)
    with pytest.raises(TypeError, match=r"probabilities must be floating-point, were torch.int64"):
        metric(P.long(), X)
    with pytest.raises(TypeError, match=r"^p must be a tensor, was \[\[0.5, 0.5\]\]"):
        metric([[0.5, 0.5]], X[:1])
    with pytest.raises(TypeError, match=r"^target must be a tensor, was \[0, 1, 2\]"):
        metric(P, [0, 1, 2])


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="eps must be > 0 and finite, was 0"):
        metrics.eps_perplexity(P, X, eps=0)
    with pytest.raises(TypeError, match="eps must be > 0 and finite, was 'a'"):
        metrics.eps_perplexity(P, X, eps="a")
    with pytest.raises(ValueError, match="eps must be > 0 and finite, was inf"):
        metrics.eps_perplexity(P, X, eps=float("inf"))
    with pytest.raises(ValueError, match=r"uniform_share must be in \(0, 1\), was 1"):
        metrics.eps_perplexity(P, X, uniform_share=1)
    for both in ({}, {"eps": 0.1, "uniform_share": 0.1}):
        with pytest.raises(ValueError, match="give eps or uniform_share, one of the two"):
            metrics.eps_perplexity(P, X, **both)
    with pytest.raises(ValueError, match="reduction must be one of 'mean', 'none', was 'sum'"):
        metrics.sparsemax_score(P, X, reduction="sum")
    with pytest.raises(ValueError, match=r"two distributions .* were \(3, 3\) and \(1, 3\)"):
        metrics.jensen_shannon(P, P[:1])
    with pytest.raises(TypeError, match=r"weights must be floating-point, were torch.int64"):
        metrics.self_normalization_sum(P.long())
    with pytest.raises(TypeError, match=r"scores must be floating-point, were torch.int64"):
        metrics.logit_norm(P.long())
    for metric, name in (
        (metrics.support_size, "p"),
        (metrics.self_normalization_sum, "p"),
        (metrics.logit_norm, "logits"),
    ):
        with pytest.raises(TypeError, match=rf"^{name} must be a tensor, was \[0.5\]"):
            metric([0.5])


@pytest.mark.parametrize("metric", [
    lambda p, y: metrics.eps_perplexity(p, y, 0.1), metrics.sparsemax_score, metrics.jensen_shannon,
    lambda p, y: metrics.support_size(p),
    lambda p, y: metrics.jensen_shannon(p.softmax(-1), p),
    lambda p, y: metrics.jensen_shannon(p, p.softmax(-1)),
])  # fmt: skip
def test_logits_are_refused_where_probabilities_are_needed(metric):
    logits = torch.tensor([[0.5, -2.0, 1.0], [0.0, 1.0, 2.0]])
    with pytest.raises(ValueError, match="probabilities must be at least 0, were from -2; for logits take"):
        metric(logits, torch.tensor([0, 1]))


@pytest.mark.parametrize("name", ["eps_perplexity", "jensen_shannon", "sparsemax_score"])
def test_one_number_is_no_distribution(name):
    options = {"eps": 0.01} if name == "eps_perplexity" else {}
    with pytest.raises(ValueError, match=r"must agree, were \(\) and \(\)"):
        getattr(metrics, name)(torch.tensor(1.0), torch.tensor(0), **options)
