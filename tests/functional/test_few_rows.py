"""A few long rows without a gradient, as in decoding, are solved in plain numbers: to the same weights."""

import pytest
import torch

from hf_sparse.functional import entmax, entmax15, sparsemax
from hf_sparse.functional._entmax_rows import EntmaxRows
from hf_sparse.functional._few_rows import FEW_ROWS, only_values_wanted, solve_few_rows
from tests.reference import entmax_by_bisection
from tests.tolerances import MASS, WEIGHT

ALPHAS = pytest.mark.parametrize("alpha", [1.05, 1.3, 4 / 3, 1.5, 1.8, 2.0])


def scores(num_rows, length, scale=3.0, dtype=torch.float32):
    z = torch.randn(num_rows, length, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (z * scale).to(dtype)


@ALPHAS
@pytest.mark.parametrize("num_rows", [1, 3, FEW_ROWS])
@pytest.mark.parametrize("length", [1024, 1031, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_are_those_of_bisection(alpha, num_rows, length, dtype):
    z = scores(num_rows, length, 20.0, dtype)
    p = solve_few_rows(z, alpha)
    assert p is not None
    expected = entmax_by_bisection(z, alpha)
    assert p.dtype == dtype
    torch.testing.assert_close(p.double(), expected, atol=10 * WEIGHT[dtype], rtol=0)
    torch.testing.assert_close(p.double().sum(-1), torch.ones(num_rows).double(), atol=MASS[dtype], rtol=0)
    torch.testing.assert_close(p > 1e-6, expected > 1e-6)


@pytest.mark.parametrize("size", [1, 2, 17, 60])
@pytest.mark.parametrize("place", ["front", "end", "spread", "one group"])
def test_supports_of_any_size_are_found_wherever_they_are(size, place):
    length = 3011  # 16 groups of 188 and a tail of 3
    columns = {
        "front": torch.arange(size),
        "end": torch.arange(length - size, length),
        "spread": torch.arange(size) * 50,
        "one group": (torch.arange(size) * 188) % 3008 + torch.arange(size) // 16,
    }[place]
    z = -30.0 - 3000 * torch.rand(2, length, generator=torch.Generator().manual_seed(0))
    z[:, columns] = torch.linspace(0, 1e-3, size)
    for function, alpha in ((entmax15, 1.5), (sparsemax, 2.0)):
        p = solve_few_rows(z, alpha)
        assert p is not None
        assert bool((p[:, columns] > 0).all())
        assert int((p > 0).sum()) == 2 * size
        torch.testing.assert_close(function(z, impl="torch"), p, atol=0, rtol=0)
        torch.testing.assert_close(p.double(), entmax_by_bisection(z, alpha), atol=1e-6, rtol=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("column", [0, 700, -1])
def test_rows_with_a_nan_or_infinite_score_are_left_to_others(bad, column):
    z = scores(2, 2001, 20.0)
    z[1, column] = bad
    assert solve_few_rows(z, 1.5) is None
    assert bool(entmax15(z)[1].isnan().any())
    torch.testing.assert_close(entmax15(z)[0], entmax15(z[0]), atol=1e-6, rtol=0)


def test_masked_rows_and_wide_rows_are_left_to_others():
    z = scores(2, 2001, 20.0)
    z[1] = -torch.inf
    assert solve_few_rows(z, 1.5) is None
    assert float(entmax15(z)[1].sum()) == 0
    assert solve_few_rows(scores(1, 2001, 0.01), 1.5) is None
    z[1, [3, 1999, 2000]] = 0.0
    torch.testing.assert_close(entmax15(z)[1].sum(), torch.tensor(1.0))
    assert (entmax15(z)[1] > 0).nonzero()[:, 0].tolist() == [3, 1999, 2000]


def test_any_axis_and_any_strides():
    z = scores(4, 5000, 20.0)
    p = entmax15(z)
    torch.testing.assert_close(entmax15(z.T.contiguous().T), p, atol=0, rtol=0)
    torch.testing.assert_close(entmax15(z.T, dim=0), p.T, atol=0, rtol=0)
    torch.testing.assert_close(entmax15(z.view(2, 1, 2, 5000)), p.view(2, 1, 2, 5000), atol=0, rtol=0)
    torch.testing.assert_close(entmax15(z[:1].expand(3, 5000)), p[:1].expand(3, 5000), atol=0, rtol=0)
    torch.testing.assert_close(entmax15(z[::2, 1::2]), entmax15(z[::2, 1::2].clone()), atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_rounded_once(dtype):
    z = scores(3, 5000, dtype=dtype)
    assert entmax15(z).dtype == dtype
    torch.testing.assert_close(entmax15(z), entmax15(z.double()).to(dtype), atol=0, rtol=0)


@pytest.mark.parametrize("num_rows", [1, 4, FEW_ROWS + 1])
@pytest.mark.parametrize("scale", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_weights_are_the_same_with_and_without_a_gradient(num_rows, scale, alpha):
    z = scores(num_rows, 3000, scale)
    dense = EntmaxRows.call(z, alpha, "torch")
    torch.testing.assert_close(entmax(z, alpha), dense, atol=WEIGHT[torch.float32], rtol=0)
    with_gradient = entmax(z.clone().requires_grad_(), alpha)
    assert with_gradient.requires_grad
    torch.testing.assert_close(with_gradient.detach(), dense, atol=WEIGHT[torch.float32], rtol=0)


def test_whoever_differentiates_or_transforms_is_noticed():
    z = scores(2, 2000, 20.0)
    assert only_values_wanted(z)
    assert not only_values_wanted(z.clone().requires_grad_())
    with torch.no_grad():
        assert only_values_wanted(z.clone().requires_grad_())
    seen = []

    def look(x):
        seen.append(only_values_wanted(x))
        return x.sum()

    torch.func.vmap(look)(z)
    torch.func.grad(look)(z)
    torch.func.jvp(look, (z,), (z,))
    with torch.autograd.forward_ad.dual_level():
        look(torch.autograd.forward_ad.make_dual(z, z))
    assert seen == [False] * 4
    torch.testing.assert_close(torch.func.vmap(entmax15)(z), entmax15(z), atol=1e-6, rtol=0)


@ALPHAS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("top", [1e16, -1e16, 1e30, -1e38, "lowest", "largest"])
def test_finite_scores_of_any_size_are_solved(alpha, dtype, top):
    # So far from zero the lower bound of the threshold rounds to the maximum itself.
    top = {"lowest": torch.finfo(dtype).min, "largest": torch.finfo(dtype).max}.get(top, top)
    equal = torch.full((1, 1024), top, dtype=dtype)
    torch.testing.assert_close(entmax(equal, alpha, impl="torch"), torch.full_like(equal, 2.0**-10))
    apart = torch.full((2, 1100), torch.finfo(dtype).min, dtype=dtype)
    apart[:, [3, 1099]] = top
    used = (entmax(apart, alpha, impl="torch") > 0).sum(-1)
    assert used.tolist() == ([1100, 1100] if top == torch.finfo(dtype).min else [2, 2])
