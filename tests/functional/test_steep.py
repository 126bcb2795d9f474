"""entmax above alpha = 2, against decimal arithmetic; and the largest alpha."""

from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_sparse.functional import entmax
from hf_sparse.losses import entmax_loss
from tests.tolerances import GRADIENT, MASS, WEIGHT

STEEP = pytest.mark.parametrize("alpha", [2.0625, 3.0, 10.0, 64.0])


def weights_in_decimals(z, alpha):
    """The weights of one row, by bisection on the smallest of its support; every number to sixty digits."""
    with localcontext() as context:
        context.prec = 60
        excess = Decimal(alpha) - 1
        power, scores = 1 / excess, [Decimal(float(score)) * excess for score in z]
        order = sorted(scores, reverse=True)
        smallest = max(k for k in range(len(z)) if sum((x - order[k]) ** power for x in order[:k] if x > order[k]) < 1)
        last = order[smallest]
        low, high = Decimal(0), Decimal(1)
        for _ in range(80):
            q = (low + high) / 2
            mass = sum((x - last + q**excess) ** power for x in order[: smallest + 1])
            low, high = (low, q) if mass >= 1 else (q, high)
        return [float((x - last + high**excess) ** power) if x >= last else 0.0 for x in scores]


def rows(scale, dtype):
    z = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * scale
    z[1, 3] = z[1, 2]
    return z.to(dtype)


@STEEP
@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_weights_equal_decimal_arithmetic(alpha, scale, dtype):
    z = rows(scale, dtype)
    exact = torch.tensor([weights_in_decimals(row.tolist(), alpha) for row in z], dtype=torch.float64)
    torch.testing.assert_close(entmax(z, alpha).double(), exact, atol=WEIGHT[dtype], rtol=0)


def test_weights_are_right_where_the_threshold_and_the_scores_cannot_be_told_apart():
    # Scores 1e-30 and less apart: their weights still differ in the first digit.
    for gap, alpha in ((1e-30, 64.0), (1e-20, 64.0), (1e-9, 10.0)):
        z = torch.tensor([gap, 0.0], dtype=torch.float64)
        expected = torch.tensor(weights_in_decimals(z.tolist(), alpha), dtype=torch.float64)
        torch.testing.assert_close(entmax(z, alpha), expected, atol=1e-14, rtol=0)


@STEEP
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_jacobian_product_equals_decimal_arithmetic(alpha, dtype):
    # Weights from .6 to .01: at alpha = 64 their slopes p^(2 - alpha) are 1e13 to 1e124, and nearly all cancels.
    z = torch.tensor([0.6, 0.3, 0.09, 0.01], dtype=torch.float64).pow(alpha - 1).div(alpha - 1)
    z = z.masked_fill(z < 1e-30, 0.0).to(dtype).requires_grad_()
    p = entmax(z, alpha)
    upstream = torch.tensor([1.0, -2.0, 0.75, 3.0], dtype=dtype)
    (found,) = torch.autograd.grad(p, z, upstream)
    with localcontext() as context:
        context.prec = 300
        slopes = [Decimal(weight) ** (2 - Decimal(alpha)) if weight > 0 else Decimal(0) for weight in p.tolist()]
        mean = sum(s * Decimal(g) for s, g in zip(slopes, upstream.tolist())) / sum(slopes)
        exact = [s * (Decimal(g) - mean) for s, g in zip(slopes, upstream.tolist())]
        largest = torch.finfo(dtype).max
        pairs = [(Decimal(ours), right) for ours, right in zip(found.tolist(), exact) if 0 < abs(right) < largest]
        ratios = [float(ours / right) for ours, right in pairs]
    assert len(ratios) > 0
    assert ratios == pytest.approx([1.0] * len(ratios), rel=1e3 * GRADIENT[dtype])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=9),
    st.sampled_from([2.001, 2.5, 4.0, 17.0, 64.0]),
)
def test_any_row_keeps_its_order_and_has_mass_one(scores, alpha):
    z = torch.tensor(scores, requires_grad=True)
    p = entmax(z, alpha)
    assert float(p.double().sum()) == pytest.approx(1, abs=MASS[torch.float32])
    assert bool((p[z.argsort()].diff() >= 0).all())
    for i in range(len(z)):
        assert bool((p[z == z[i]] == p[i]).all())
    (gradient,) = torch.autograd.grad(p, z, torch.arange(1.0, len(z) + 1))
    assert not bool(gradient.isnan().any())


@STEEP
def test_masked_rows_and_rows_without_a_finite_maximum(alpha):
    z = torch.tensor([[-torch.inf] * 2, [1.0, -torch.inf], [torch.nan, 0.0], [torch.inf, 0.0]], requires_grad=True)
    p = entmax(z, alpha)
    assert p[:2].tolist() == [[0, 0], [1, 0]]
    assert bool(p[2:].isnan().all())
    p[:2].sum().backward()
    assert bool((z.grad[:2] == 0).all())


@STEEP
def test_compiled_code_takes_enough_steps(alpha):
    z = torch.cat([rows(1e-2, torch.float64), torch.linspace(0, 1e-3, 6, dtype=torch.float64).expand(1, 6) ** 3])
    traced = torch.jit.trace(lambda z: entmax(z, alpha), z)
    torch.testing.assert_close(traced(z), entmax(z, alpha), atol=1e-14, rtol=0)


def test_the_loss_is_right_at_the_largest_alpha():
    z = rows(1e-3, torch.float64)[0]
    p = torch.tensor(weights_in_decimals(z.tolist(), 64.0), dtype=torch.float64)
    expected = (z * p).sum() - (p.pow(64).sum() - 1) / (64 * 63) - z[2]
    torch.testing.assert_close(entmax_loss(z[None], torch.tensor([2]), 64.0), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("alpha", [64.5, 1e308, float("inf"), float("nan")])
def test_what_is_not_known_to_be_right_is_refused(alpha):
    for call in (
        lambda: entmax(torch.ones(2), alpha),
        lambda: entmax_loss(torch.ones(1, 2), torch.tensor([0]), alpha),
    ):
        with pytest.raises(ValueError, match="alpha must be a number from 1 to 64, was"):
            call()
