import pytest
import torch

from hf_sparse.functional import candidates as candidates_module
from hf_sparse.functional import entmax, entmax15
from hf_sparse.functional._entmax_rows import EntmaxRows
from hf_sparse.functional.candidates import CANDIDATES_FROM, put, solve_long_rows, take
from tests.reference import entmax_by_bisection
from tests.tolerances import MASS, WEIGHT


def scores(num_rows, length, scale, dtype=torch.float32):
    return (torch.randn(num_rows, length, generator=torch.Generator().manual_seed(1)) * scale).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("alpha", [1.05, 1.3, 1.5, 4 / 3, 1.8, 2.0])
@pytest.mark.parametrize("scale", [0.001, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("length", [1024, 1031, 5000])
def test_supports_and_masses_are_exact(dtype, alpha, scale, length):
    z = scores(3, length, scale, dtype)
    solved = solve_long_rows(z, alpha)
    expected = entmax_by_bisection(z, alpha)
    weights = solved.u.double() ** (1 / (alpha - 1))
    for row in range(3):
        if solved.crowded[row]:
            assert int((expected[row] > 0).sum()) * 8 * 2 > length / 4
            continue
        dense = torch.zeros(length, dtype=torch.float64)
        used = solved.u[row] > 0
        dense[solved.columns[row, used]] = weights[row, used]
        # The power multiplies what float32 leaves of u; the map divides by the mass afterwards.
        torch.testing.assert_close(dense, expected[row], atol=1e-6 / (alpha - 1), rtol=0)
        assert abs(float(dense.sum()) - 1) < 2 * MASS[torch.float32] / (alpha - 1)
        # An excluded entry below float32's resolution of the threshold may differ; anything above must not.
        assert not bool(((expected[row] > 1e-9) & (dense == 0)).any())
        assert float(solved.bound[row]) <= -float(solved.u[row].max())


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e8, -1e8])
def test_the_bound_holds_in_raw_units_of_any_size(offset):
    z = (scores(4, 2048, 3.0).double() + offset).float()
    torch.testing.assert_close(entmax(z, 1.5).double(), entmax_by_bisection(z, 1.5), atol=1e-6, rtol=0)


def test_one_wide_row_is_marked_and_the_others_solved():
    z = scores(3, 4096, 10.0)
    z[1] = 0.5
    solved = solve_long_rows(z, 1.5)
    assert solved.crowded.tolist() == [False, True, False]
    torch.testing.assert_close((solved.u**2).sum(1), torch.tensor([1.0, 0.0, 1.0]))
    torch.testing.assert_close(entmax(z, 1.5)[1], torch.full((4096,), 1 / 4096), atol=1e-9, rtol=1e-4)


def test_masked_nan_and_infinite_rows_have_no_candidates():
    z = scores(4, 2000, 10.0)
    z[0], z[1, 5], z[2, 7] = -torch.inf, torch.nan, torch.inf
    solved = solve_long_rows(z, 1.5)
    assert (solved.u > 0).any(1).tolist() == [False, False, False, True]
    assert not bool(solved.crowded.any())
    assert float(solved.top[0]) == -torch.inf
    p = entmax(z, 1.5)
    assert bool((p[0] == 0).all())
    assert bool(p[1:3].isnan().all())
    torch.testing.assert_close(p[3], entmax(z[3], 1.5))


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_the_route_over_candidates_equals_the_dense_one(alpha):
    z, upstream = scores(5, CANDIDATES_FROM, 2.0), scores(5, CANDIDATES_FROM, 1.0)
    results = []
    for route in (lambda x: entmax(x, alpha), lambda x: EntmaxRows.call(x, alpha, "torch")):
        leaf = z.clone().requires_grad_()
        p = route(leaf)
        results.append((p.detach(), *torch.autograd.grad(p, leaf, upstream)))
    for candidate, dense in zip(*results):
        torch.testing.assert_close(candidate, dense, atol=1e-6, rtol=0)


def test_take_and_put_are_transposes_and_leave_unused_places_out():
    z = scores(2, 8, 1.0).double().requires_grad_()
    columns, used = torch.tensor([[3, 5, 0], [7, 0, 0]]), torch.tensor([[True, True, False], [True, True, False]])
    values = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    left = (take(z, columns, used) * values * used).sum()
    right = (z * put(values, columns, used, 8)).sum()
    torch.testing.assert_close(left, right)
    assert torch.autograd.gradcheck(lambda v: put(v, columns, used, 8), values)
    (gradient,) = torch.autograd.grad(take(z, columns, used).masked_fill(~used, 0.0).sum(), z)
    assert gradient.nonzero().tolist() == [[0, 3], [0, 5], [1, 0], [1, 7]]


def test_only_the_candidates_are_saved_for_backward():
    saved = []
    z = scores(4, 20_000, 3.0).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        entmax(z, 1.5)
    assert sum(saved) < z.numel() / 10


def test_no_rows_give_no_weights():
    z = torch.zeros(0, 2000, requires_grad=True)
    assert entmax(z, 1.5).shape == (0, 2000)
    entmax(z, 1.5).sum().backward()
    assert z.grad.shape == (0, 2000)


@pytest.mark.parametrize("num_rows", [2, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_deterministic_algorithms_are_enough(dtype, num_rows):
    z = (2 * torch.randn(num_rows, 6000, generator=torch.Generator().manual_seed(0))).to(dtype).requires_grad_()
    expected = entmax(z, 1.5, impl="torch")
    torch.use_deterministic_algorithms(True)
    try:
        p = entmax(z, 1.5, impl="torch")
        p.square().sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(p, expected)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("num_rows", [64, 65, 300])
def test_rows_that_are_mostly_support_are_found_by_looking_at_a_few(monkeypatch, num_rows, wanted):
    asked, solve = [], candidates_module.solve_long_rows

    def counted(z, *rest):
        asked.append(len(z))
        return solve(z, *rest)

    monkeypatch.setattr(candidates_module, "solve_long_rows", counted)
    few, all_rows = [8] if num_rows > 64 else [num_rows], [8, num_rows] if num_rows > 64 else [num_rows]
    z = torch.randn(num_rows, 1024, generator=torch.Generator().manual_seed(0))
    one_crowded = (4 * z).index_copy(0, torch.tensor([1]), 1e-3 * z[1:2])
    for scores, expected in ((1e-3 * z, few), (4 * z, all_rows), (one_crowded, all_rows)):
        asked.clear()
        p = entmax15(scores.clone().requires_grad_(wanted), impl="torch")
        assert asked == expected
        torch.testing.assert_close(p.double(), entmax_by_bisection(scores, 1.5), atol=WEIGHT[torch.float32], rtol=0)
