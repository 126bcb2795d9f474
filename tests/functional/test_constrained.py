import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_sparse.functional import _csoftmax, _csparsemax, csoftmax, csparsemax, softmax, sparsemax
from tests.reference import clipped_by_bisection
from tests.tolerances import MASS

BOTH = pytest.mark.parametrize("function", [csoftmax, csparsemax], ids=lambda function: function.__name__)
INCREASING = {csoftmax: torch.exp, csparsemax: lambda t: t.clamp(min=0)}
UNBOUNDED = {csoftmax: softmax, csparsemax: sparsemax}


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (csoftmax, [[0.5217, 0.3497, 0.1286], [0.3610, 0.4409, 0.1981], [0.1173, 0.2094, 0.6732]]),
        (csparsemax, [[0.7, 0.3, 0.0], [0.3, 0.7, 0.0], [0.0, 0.0, 1.0]]),
    ],
)
def test_figure_1_of_the_paper(function, rows):
    spent = torch.zeros(3)
    for z, expected in zip(([1.2, 0.8, -0.2], [0.7, 0.9, 0.1], [-0.2, 0.2, 0.9]), rows):
        p = function(torch.tensor(z), 1 - spent)
        torch.testing.assert_close(p, torch.tensor(expected), atol=5e-5, rtol=0)
        spent = spent + p
    torch.testing.assert_close(spent, torch.ones(3), atol=1e-6, rtol=0)


@BOTH
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_weights_equal_bisection(function, data):
    size = data.draw(st.integers(1, 6))
    z = torch.tensor(data.draw(st.lists(st.floats(-8, 8, width=16), min_size=size, max_size=size))).double()
    u = torch.tensor(data.draw(st.lists(st.floats(0, 3, width=16), min_size=size, max_size=size))).double()
    u = u + (1.001 - u.sum()).clamp(min=0) / size
    if data.draw(st.booleans()):
        u[0] = torch.inf
    expected = clipped_by_bisection(INCREASING[function], z, u)
    torch.testing.assert_close(function(z, u), expected, atol=1e-9, rtol=0)


@BOTH
@pytest.mark.parametrize("most", [0.05, 0.3, 1.5])
def test_rows_settled_in_rounds_and_rows_that_are_sorted_equal_bisection(function, most, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    z = 4 * torch.randn(30, 40, generator=generator, dtype=torch.float64)
    u = most * torch.rand(30, 40, generator=generator, dtype=torch.float64)
    u *= (1.01 / u.sum(-1, keepdim=True)).clamp(min=1)  # feasible, some only just
    u[::3, 7] = torch.inf
    # Each bound binds only once those before it do: rounds do not settle this row.
    z[0], left = 0.0, 1.0
    for i in range(39):
        u[0, i] = 0.999 * left / (40 - i)
        left -= float(u[0, i])
    u[0, 39] = torch.inf
    # Too little mass at the first threshold, and flat there: Newton's method has no slope to go by.
    z[1], z[1, 0] = -7.0, 0.0
    u[1, 0] = 0.9
    expected = torch.stack([clipped_by_bisection(INCREASING[function], *row) for row in zip(z, u)])
    torch.testing.assert_close(function(z, u), expected, atol=1e-9, rtol=0)
    module = {csoftmax: _csoftmax, csparsemax: _csparsemax}[function]
    name, by_sorting = {
        csoftmax: ("_clipped", _csoftmax._clipped_by_sorting),
        csparsemax: ("_threshold", _csparsemax._sorted_threshold),
    }[function]
    monkeypatch.setattr(module, name, by_sorting)  # as compilers and devices do it
    torch.testing.assert_close(function(z, u), expected, atol=1e-9, rtol=0)


@BOTH
def test_few_rows_are_sorted(function, monkeypatch):
    sorted_rows, argsort, sort = [], torch.Tensor.argsort, torch.Tensor.sort
    monkeypatch.setattr(torch.Tensor, "argsort", lambda x, *a, **k: sorted_rows.append(len(x)) or argsort(x, *a, **k))
    monkeypatch.setattr(torch.Tensor, "sort", lambda x, *a, **k: sorted_rows.append(len(x)) or sort(x, *a, **k))
    generator = torch.Generator().manual_seed(2)
    for _ in range(10):
        z, u = 1.5 * torch.randn(500, 30, generator=generator), 2 * torch.rand(500, 30, generator=generator)
        function(z, u)
    assert sum(sorted_rows) < 500  # of 5000


@BOTH
@pytest.mark.parametrize("scale", [1, 100, 10_000])
def test_rows_keep_their_mass_however_far_the_threshold_lies_below_the_top(function, scale):
    generator = torch.Generator().manual_seed(0)
    z, u = scale * torch.randn(500, 60, generator=generator), 0.5 * torch.rand(500, 60, generator=generator)
    p = function(z, u)
    torch.testing.assert_close(p.sum(-1), torch.ones(500), atol=1e-6, rtol=0)
    torch.testing.assert_close(p, function(z.double(), u.double()).float(), atol=1e-6, rtol=0)


def test_many_entries_far_below_the_top_leave_their_share_to_the_best_of_them():
    z = torch.cat([torch.tensor([1e4, 0.0, -1e4, 1.0]), torch.full((1496,), -1.0)])
    expected = torch.zeros(1500).index_fill_(0, torch.tensor([0]), 0.6).index_fill_(0, torch.tensor([3]), 0.4)
    torch.testing.assert_close(csparsemax(z, torch.tensor(0.6)), expected, atol=1e-6, rtol=0)


def test_a_bound_above_one_never_lets_a_weight_exceed_one():
    generator = torch.Generator().manual_seed(0)
    z, u = torch.randn(2000, 3, generator=generator) * 2, torch.rand(2000, 3, generator=generator) * 3 + 0.4
    p = csparsemax(z, u)
    torch.testing.assert_close(p.sum(-1), torch.ones(2000), atol=1e-6, rtol=0)
    assert 200 < int((p == 1).sum()) < 2000


@BOTH
def test_no_weight_is_negative_where_bounds_that_sum_to_one_are_rounded_to_more(function):
    generator = torch.Generator().manual_seed(0)
    z, u = torch.randn(500, 30, generator=generator), torch.rand(500, 30, generator=generator)
    z[:, :20] += 30
    u[:, :20] /= u[:, :20].sum(-1, keepdim=True)
    assert bool((u[:, :20].sum(-1) > 1).any())
    p = function(z, u)
    assert p.min() >= 0
    torch.testing.assert_close(p.sum(-1), torch.ones(500), atol=MASS[torch.float32], rtol=0)


@BOTH
def test_without_effective_bounds_it_is_the_map_it_constrains(function):
    z = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(function(z, torch.tensor(torch.inf)), UNBOUNDED[function](z), atol=1e-6, rtol=0)


@BOTH
def test_gradients_to_scores_and_bounds_twice_and_along_any_dim(function):
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(6, 4, generator=generator, dtype=torch.float64).requires_grad_()
    u = (torch.rand(6, 4, generator=generator, dtype=torch.float64) * 0.4 + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda z, u: function(z, u, dim=0), (z, u))
    assert torch.autograd.gradgradcheck(lambda z, u: function(z, u, dim=0), (z, u))


def test_gradients_are_the_propositions_of_the_paper():
    z = torch.tensor([1.2, 0.8, -0.2, -4.0], dtype=torch.float64, requires_grad=True)
    u = torch.tensor([0.3, 1.0, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
    upstream = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    dz, du = torch.autograd.grad(csparsemax(z, u), (z, u), upstream)
    inside = torch.tensor([False, True, False, False])
    mean = upstream[inside].mean()
    torch.testing.assert_close(dz, torch.where(inside, upstream - mean, 0.0))
    torch.testing.assert_close(du, torch.tensor([1.0 - mean, 0, 0, 0], dtype=torch.float64))
    p = csoftmax(z, u)
    weights = p.detach()
    dz, du = torch.autograd.grad(p, (z, u), upstream)
    free = torch.tensor([False, True, True, True])
    mean = (weights * upstream)[free].sum() / (1 - 0.3)
    torch.testing.assert_close(dz, torch.where(free, weights * (upstream - mean), 0.0))
    torch.testing.assert_close(du, torch.tensor([1.0 - float(mean), 0, 0, 0], dtype=torch.float64))


def test_csparsemax_with_nothing_between_the_bounds_passes_no_gradient():
    z, u = torch.tensor([5.0, 3.0, -9.0], requires_grad=True), torch.tensor([0.5, 0.5, 1.0], requires_grad=True)
    csparsemax(z, u).mul(torch.arange(3)).sum().backward()
    assert z.grad.tolist() == [0, 0, 0]
    assert u.grad.tolist() == [0, 0, 0]


def test_csoftmax_keeps_its_mass_where_the_linear_formula_underflows():
    p = csoftmax(torch.tensor([20.0, 0, 0]), torch.tensor([0.5, 1, 1]))
    torch.testing.assert_close(p, torch.tensor([0.5, 0.25, 0.25]))
    p = csoftmax(torch.tensor([200.0, 0, -200.0]), torch.tensor([0.5, 0.4, 1]))
    torch.testing.assert_close(p, torch.tensor([0.5, 0.4, 0.1]))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_masked_rows_are_zero_and_nan_stays_in_its_row(function, dtype):
    z = torch.zeros(4, 3, dtype=dtype)
    z[0], z[1, 0], z[2, 0] = -torch.inf, torch.nan, -torch.inf
    z.requires_grad_()
    u = torch.tensor([0.7, 0.6, 0.6], dtype=dtype)
    p = function(z, u)
    assert p.dtype == dtype
    assert bool((p[0] == 0).all())
    assert bool(p[1].isnan().all())
    torch.testing.assert_close(p[2:].float(), torch.tensor([[0, 0.5, 0.5], [1 / 3] * 3]), atol=2e-3, rtol=0)
    p[[0, 2, 3]].float().mul(torch.arange(3)).sum().backward()
    assert bool(z.grad[[0, 2, 3]].isfinite().all())
    assert bool((z.grad[0] == 0).all())


@BOTH
def test_bounds_a_rounding_error_below_zero_are_zero(function):
    p = function(torch.tensor([5.0, 1.0]), torch.tensor([-1e-8, 1.0]))
    torch.testing.assert_close(p, torch.tensor([0.0, 1.0]))


@BOTH
@pytest.mark.parametrize(
    ("u", "error", "message"),
    [
        (torch.tensor([-0.1, 1.0, 1.0]), ValueError, "upper bounds must be >= 0, the smallest was -0.1"),
        (torch.tensor([0.1, 0.2, 0.3]), ValueError, "must sum to at least 1, the least sum was 0.6"),
        (torch.tensor([1.0, 1.0]), ValueError, r"must broadcast to the scores \(3,\), was of shape \(2,\)"),
        (torch.tensor([1, 1, 1]), TypeError, "upper bounds must be a floating-point tensor, was torch.int64"),
        (1.0, TypeError, "upper bounds must be a floating-point tensor, was <class 'float'>"),
    ],
)
def test_impossible_bounds_are_refused(function, u, error, message):
    with pytest.raises(error, match=message):
        function(torch.zeros(3), u)


@BOTH
def test_bounds_of_masked_entries_do_not_make_a_row_feasible(function):
    with pytest.raises(ValueError, match=r"the least sum was 0\.4"):
        function(torch.tensor([0.0, 0.0, -torch.inf]), torch.tensor([0.2, 0.2, 1.0]))
