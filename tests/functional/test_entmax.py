from fractions import Fraction

import entmax as package
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_sparse.config import MapConfig
from hf_sparse.functional import entmax, entmax15, softmax, sparsemax
from hf_sparse.functional.negentropy import tsallis_negentropy
from tests.reference import clusters, entmax15_by_enumeration, entmax_by_bisection, sparsemax_by_enumeration
from tests.tolerances import GRADIENT, MASS, WEIGHT

ALPHAS = [1.05, 1.2, 1.25, 4 / 3, 1.5, 1.7, 2.0, 2.5, 4.0]


def scores(*shape, scale=2.0, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul(scale).to(dtype)


@pytest.mark.parametrize("seed", range(20))
def test_sparsemax_and_entmax15_equal_enumeration_over_supports(seed):
    z = scores(6, scale=0.3 * (1 + seed % 5), seed=seed)
    torch.testing.assert_close(sparsemax(z), sparsemax_by_enumeration(z), atol=WEIGHT[z.dtype], rtol=0)
    torch.testing.assert_close(entmax15(z), entmax15_by_enumeration(z), atol=WEIGHT[z.dtype], rtol=0)


@pytest.mark.parametrize("dtype", list(WEIGHT), ids=str)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("scale", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("length", [17, 3000])
def test_weights_equal_float64_bisection(dtype, alpha, scale, length):
    z = scores(4, length, scale=scale, dtype=dtype)
    p = entmax(z, alpha)
    assert p.dtype == dtype
    torch.testing.assert_close(p.double(), entmax_by_bisection(z, alpha), atol=WEIGHT[dtype], rtol=0)


@pytest.mark.parametrize(
    ("alpha", "oracle"), [(1.5, package.entmax15), (2.0, package.sparsemax), (1.3, package.entmax_bisect)]
)
@pytest.mark.parametrize("length", [40, 2000])
def test_weights_and_gradient_equal_the_entmax_package_in_float64(alpha, oracle, length):
    z, upstream = scores(3, length).requires_grad_(), scores(3, length, seed=1)
    settings = {"alpha": alpha, "n_iter": 100} if oracle is package.entmax_bisect else {}
    ours, theirs = entmax(z, alpha), oracle(z, **settings)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)
    (mine,) = torch.autograd.grad(ours, z, upstream)
    (other,) = torch.autograd.grad(theirs, z, upstream)
    torch.testing.assert_close(mine, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_gradient_is_the_closed_form_jacobian_for_supports_of_every_size(alpha, size):
    z = torch.full((12,), -50.0, dtype=torch.float64)
    z[:size] = torch.linspace(0, 0.01, size, dtype=torch.float64)
    p = entmax(z, alpha)
    assert int((p > 0).sum()) == size
    s = torch.where(p > 0, p.pow(2 - alpha), 0.0)
    expected = torch.diag(s) - torch.outer(s, s) / s.sum()
    actual = torch.autograd.functional.jacobian(lambda z: entmax(z, alpha), z)
    torch.testing.assert_close(actual, expected, atol=GRADIENT[z.dtype], rtol=0)


def test_alpha_one_is_softmax_and_larger_alpha_is_sparser():
    z = scores(5, 9)
    torch.testing.assert_close(entmax(z, 1.0), torch.softmax(z, -1), atol=1e-15, rtol=0)
    torch.testing.assert_close(softmax(z), torch.softmax(z, -1), atol=1e-15, rtol=0)
    sizes = [int((entmax(z, alpha) > 0).sum()) for alpha in (1.0, 1.3, 1.5, 2.0, 3.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


@pytest.mark.parametrize("function", [softmax, entmax15, sparsemax, entmax], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dim", [0, 1, -2, -1])
def test_dim_says_which_axis_is_mapped(function, dim):
    z = scores(3, 4, 5)
    expected = torch.stack([function(row) for row in z.movedim(dim, -1).reshape(-1, z.shape[dim])])
    expected = expected.view(z.movedim(dim, -1).shape).movedim(-1, dim)
    torch.testing.assert_close(function(z, dim=dim), expected, atol=1e-12, rtol=0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=12),
    st.sampled_from([1.0, 1.1, 1.5, 1.8, 2.0, 3.0]),
    st.floats(-1000, 1000, width=32),
)
def test_weights_are_a_distribution_that_keeps_order_and_ignores_offsets(values, alpha, offset):
    z = torch.tensor(values, dtype=torch.float64)
    p = entmax(z, alpha)
    assert bool((p >= 0).all())
    torch.testing.assert_close(p.sum(), torch.ones_like(p.sum()), atol=1e-9, rtol=0)
    assert bool((p[z.argsort()].diff() >= -1e-9).all())
    torch.testing.assert_close(entmax(z + offset, alpha), p, atol=1e-6, rtol=0)


@pytest.mark.parametrize("of_tensor", [False, True])
@pytest.mark.parametrize("length", [17, 500, 2000])
@pytest.mark.parametrize("alpha", [1.05, 1.2, 1.45, 1.5, 1.7, 1.9, 2.0])
def test_clusters_of_ties_near_the_threshold_are_no_less_exact(alpha, length, of_tensor):
    z = clusters(length, alpha)[:: 3 if length < 2000 else 31]
    expected = entmax_by_bisection(z, alpha)
    p = entmax(z, torch.full((len(z), 1), alpha) if of_tensor else alpha, impl="torch").double()
    torch.testing.assert_close(p, expected, atol=WEIGHT[torch.float32], rtol=0)
    torch.testing.assert_close(p.sum(-1), torch.ones_like(p[:, 0]), atol=MASS[torch.float32], rtol=0)


@pytest.mark.parametrize("function", [entmax15, sparsemax], ids=lambda f: f.__name__)
def test_clusters_built_to_slow_newton_down_still_converge(function):
    values = torch.tensor([-(1.2 ** (k - 15)) for k in range(16)])
    z = torch.cat([value.expand(2 ** (k + 1)) for k, value in enumerate(values)])[None]
    z = z * (2 if function is entmax15 else 1)
    alpha = 1.5 if function is entmax15 else 2.0
    torch.testing.assert_close(function(z).double(), entmax_by_bisection(z, alpha), atol=1e-6, rtol=0)
    assert abs(float(function(z).double().sum()) - 1) < MASS[torch.float32]


def test_rows_longer_than_a_chunk_are_mapped_one_by_one(monkeypatch):
    monkeypatch.setattr("hf_sparse.functional.rows._CHUNK", 2)
    z = torch.randn(3, 300, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(entmax(z, 1.3, impl="torch").double(), entmax_by_bisection(z, 1.3), atol=1e-6, rtol=0)


def test_infinite_gradients_off_the_support_do_not_enter():
    z = torch.tensor([[1.0, 0.9, -9.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(entmax15(z), z, torch.tensor([[1.0, 2.0, torch.inf]]))
    (expected,) = torch.autograd.grad(entmax15(z), z, torch.tensor([[1.0, 2.0, 0.0]]))
    torch.testing.assert_close(gradient, expected)


def test_tsallis_negentropy_is_zero_at_one_hot_and_makes_entmax_its_maximizer():
    assert float(tsallis_negentropy(torch.tensor([0.0, 1.0]), 1.5)) == 0
    z = scores(4)
    for alpha in (1.0, 1.05, 1.5, 2.0):
        best = entmax(z, alpha)
        value = best @ z - tsallis_negentropy(best, alpha)
        for seed in range(20):
            other = torch.softmax(scores(4, seed=seed), -1)
            assert other @ z - tsallis_negentropy(other, alpha) <= value + 1e-9


@pytest.mark.parametrize("alpha", [np.float32(1.25), np.float64(1.25), Fraction(5, 4)])
def test_settings_are_any_real_number(alpha):
    z = scores(3, seed=1)
    assert torch.equal(entmax(z, alpha), entmax(z, 1.25))
    parsed, exact = (MapConfig.parse({"name": "entmax", "alpha": value}, "head") for value in (alpha, 1.25))
    assert parsed == exact


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0],), TypeError, "scores must be a floating-point tensor, was <class 'list'>"),
        ((torch.tensor([1, 2]),), TypeError, "scores must be a floating-point tensor, was torch.int64"),
        ((torch.ones(2), 0.8), ValueError, "alpha must be a number from 1 to 64, was 0.8"),
        ((torch.ones(2), "1.5"), TypeError, "alpha must be a number from 1 to 64, was '1.5'"),
        ((torch.ones(2, 3), 1.5, 2), IndexError, r"dim must be in \[-2, 1\] for scores of shape \(2, 3\), was 2"),
        ((torch.ones(2, 3), 1.5, True), TypeError, "dim must be a whole number, was True"),
        ((torch.tensor(1.0),), ValueError, r"scores must have an axis to be mapped, was one number, 1\.0"),
        ((torch.ones(2), True), TypeError, "alpha must be a number from 1 to 64, was True"),
        ((torch.ones(2, 0),), ValueError, "at least one entry, was of shape \\(2, 0\\) along dim -1"),
    ],
)
def test_mistakes_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        entmax(*arguments)
