"""Draws from distributions: their mean over all offsets is the distribution, with the variance of the theorem."""

import pytest
import torch

from hf_sparse import sparse_config, sparsify
from hf_sparse.config import MapConfig
from hf_sparse.model.lazy_logits import LinearLogits
from hf_sparse.training.drawn_support import drawn_support
from hf_sparse.training.supports import Supports
from tests.tiny_models import tiny_model


def threshold(p, draws):
    """c with ``sum_i min(1, p_i / c) = draws``, by bisection; 0 where all classes of nonzero probability are kept."""
    low, high = 0.0, 1.0
    if int((p > 0).sum()) <= draws:
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if float((p / middle).clamp(max=1).sum()) > draws:
            low = middle
        else:
            high = middle
    return high


def every_draw(p, draws):
    """All values that q takes as the offset runs through [0, 1), (M, V), and the length of the offsets of each, (M,).

    q changes only where the running sum of ``p / c`` below c, less a whole number, is the offset.
    """
    c = threshold(p, draws)
    below = p[p < c]
    ends = torch.cat([(below / (c or 1)).cumsum(0) % 1, torch.tensor([0.0, 1.0], dtype=p.dtype)]).sort().values
    lengths, middles = ends.diff(), (ends[1:] + ends[:-1]) / 2
    lengths, middles = lengths[lengths > 1e-9], middles[lengths > 1e-9]
    ids, q, _ = drawn_support(p.expand(len(middles), -1), draws, middles)
    return torch.zeros(len(middles), len(p), dtype=q.dtype).scatter_add(1, ids, q), lengths


def distributions():
    generator = torch.Generator().manual_seed(0)
    flat = torch.rand(9, generator=generator, dtype=torch.float64)
    steep = (4 * torch.randn(12, generator=generator, dtype=torch.float64)).softmax(0)
    holes = torch.tensor([0.0, 0.3, 0.0, 0.25, 0.2, 0.0, 0.15, 0.1], dtype=torch.float64)
    ties = torch.tensor([0.25, 0.125, 0.125, 0.125, 0.125, 0.0625, 0.0625, 0.0625, 0.0625], dtype=torch.float64)
    return {
        "flat": flat / flat.sum(),
        "steep": steep,
        "holes": holes,
        "ties": ties,
        "equal": torch.full((8,), 0.125, dtype=torch.float64),
        "sure": torch.eye(5, dtype=torch.float64)[3],
    }


@pytest.mark.parametrize("draws", [1, 2, 3, 5, 8, 20])
@pytest.mark.parametrize("name", distributions())
def test_the_mean_over_all_offsets_is_the_distribution(name, draws):
    p = distributions()[name]
    q, lengths = every_draw(p, draws)
    torch.testing.assert_close((lengths[:, None] * q).sum(0), p, rtol=0, atol=1e-8)
    torch.testing.assert_close(q.sum(-1), torch.ones(len(q), dtype=torch.float64))
    assert (q > 0).sum(-1).tolist() == [min(draws, int((p > 0).sum()))] * len(q)
    assert not bool(q[:, p == 0].any())


@pytest.mark.parametrize("draws", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["flat", "steep", "holes", "ties", "equal"])
def test_the_variance_is_the_least_of_unbiased_estimates_with_as_many_classes(name, draws):
    p = distributions()[name]
    c = threshold(p, draws)
    q, lengths = every_draw(p, draws)
    variance = float((lengths * ((q - p) ** 2).sum(-1)).sum())
    assert variance == pytest.approx(float((p * (c - p))[p < c].sum()), abs=1e-7)
    assert variance <= float(p @ (1 - p)) / draws + 1e-9  # that of as many draws with replacement
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):  # other chances to be kept, with the mean number of classes that is allowed
        chance = torch.rand(len(p), generator=generator, dtype=torch.float64) * (p > 0) + 1e-3 * (p > 0)
        chance = (chance * draws / chance.sum()).clamp(max=1)
        bound = (p**2 / chance.where(p > 0, 1.0) - p**2).sum()  # of weights p / chance, the best for given chances
        assert variance <= float(bound) + 1e-9


def test_likely_classes_are_kept_as_they_are_and_the_others_weigh_the_same():
    p = distributions()["steep"]
    c = threshold(p, 5)
    ids, q, num_certain = drawn_support(p.expand(50, -1), 5, torch.linspace(0, 0.99, 50))
    likeliest = p.argsort(descending=True)
    count = int((p >= c).sum())
    assert 1 <= count < 5
    assert num_certain.tolist() == [count] * 50
    assert ids[:, :count].tolist() == [likeliest[:count].tolist()] * 50
    torch.testing.assert_close(q[:, :count], p[likeliest[:count]].expand(50, -1))
    torch.testing.assert_close(q[:, count:], torch.full((50, 5 - count), c, dtype=torch.float64))
    assert {len(set(row)) for row in ids.tolist()} == {5}
    assert len(set(map(tuple, ids.tolist()))) > 1


def test_rows_draw_for_themselves_and_keep_their_sum():
    p = torch.stack([distributions()["flat"], distributions()["ties"]]).float() * torch.tensor([[1.0], [0.5]])
    offset = torch.tensor([0.2, 0.9])
    both = drawn_support(p, 4, offset)
    for number in range(2):
        alone = drawn_support(p[number : number + 1], 4, offset[number : number + 1])
        for one, other in zip(alone, both):
            torch.testing.assert_close(one[0], other[number], rtol=0, atol=0)
    torch.testing.assert_close(both.q.sum(-1), torch.tensor([1, 0.5], dtype=torch.float64), rtol=0, atol=1e-6)
    assert both.q.dtype == torch.float64
    assert drawn_support(p[:0], 4, offset[:0]).ids.shape == (0, 4)
    assert drawn_support(p, 40, offset).ids.shape == (2, 9)


def test_the_last_offset_before_one_stays_inside_the_vocabulary():
    p = torch.full((1, 70_000), 1 / 70_000)
    last = torch.tensor([1 - 2.0**-24])
    for draws in (1, 3, 64, 1000, 60_000):
        ids, q, _ = drawn_support(p, draws, last)
        assert int(ids.max()) == 69_999
        torch.testing.assert_close(q.sum(-1), p.double().sum(-1))


def test_the_offset_zero_draws_no_class_of_probability_zero_and_none_twice():
    p = distributions()["holes"][None]
    first = drawn_support(p, 2, torch.zeros(1))
    assert first.ids.tolist() == [[1, 3]]
    likely = torch.tensor([[0.6, 0.1, 0.1, 0.1, 0.1]])  # the first class is certain, and is not drawn besides
    assert drawn_support(likely, 2, torch.zeros(1)).ids.tolist() == [[0, 1]]


def test_classes_that_are_equally_likely_are_all_certain_where_all_are_kept():
    for num_classes in range(2, 60):  # sums of some of these shares are rounded up
        p = torch.full((1, num_classes), 1 / num_classes, dtype=torch.float64)
        assert drawn_support(p, num_classes, torch.tensor([0.5])).num_certain.tolist() == [num_classes]


HEADS = ["softmax", "entmax15", "sparsemax", {"name": "entmax", "alpha": 1.2}, {"name": "alpha_relu", "tau": 0.3}]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_the_gradient_of_every_loss_is_unbiased_and_its_value_is_off_by_a_constant(head, fused):
    map_config = MapConfig("softmax")
    if head != "softmax":
        map_config = sparse_config(sparsify(tiny_model("llama"), head=head)).head
    generator = torch.Generator().manual_seed(0)
    p, excess = distributions()["steep"], []
    q, lengths = every_draw(p, 4)
    everything = torch.arange(12)[None]
    for _ in range(2):
        inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((1, 5), (12, 5), (12,))]
        inputs = [part.requires_grad_() for part in inputs]
        logits = LinearLogits(*inputs) if fused else LinearLogits(*inputs).compute()
        whole = Supports(everything, p[None]).loss(map_config, logits, None)
        expected = torch.autograd.grad(whole, inputs, retain_graph=True)
        drawn = [Supports(everything, row[None]).loss(map_config, logits, None) for row in q]
        mean = sum(float(length) * loss for length, loss in zip(lengths, drawn))
        for one, other in zip(torch.autograd.grad(mean, inputs), expected):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
        excess.append(float((mean - whole).detach()))
        assert max(float((loss - drawn[0]).detach().abs()) for loss in drawn) > 1e-3
    assert excess[0] == pytest.approx(excess[1], abs=1e-6)
    assert excess[0] > 1e-4
