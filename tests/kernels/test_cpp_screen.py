"""Products from 8 bits a weight keep to their bounds, and the exact ones are those of float64 to rounding."""

import shutil

import pytest
import torch

from hf_sparse.kernels import code_rows, fingerprint, refine_, screen, screening_problem

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)
ROUNDING = 1e-6
HALVES = [torch.float32, torch.bfloat16, torch.float16]


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def screened(matrix, vectors, bias=None, most=8):
    found = screen(code_rows(matrix), matrix, bias, vectors.float(), most)
    exact = vectors.double() @ matrix.double().T + (0 if bias is None else bias.double())
    return found, exact


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("width", [1, 7, 64, 100, 512, 577])
@pytest.mark.parametrize("num_vectors", [1, 2, 3, 7, 8])
def test_every_product_is_within_its_bound(width, num_vectors, dtype):
    matrix, bias = random(500, width, dtype=dtype), random(500, seed=2)
    matrix[:100] *= 10.0 ** torch.linspace(-4, 3, 100)[:, None].to(dtype)
    vectors = random(num_vectors, width, seed=1, dtype=dtype)
    vectors[:, ::3] *= 30
    for offset in (None, bias):
        found, exact = screened(matrix, vectors, offset)
        size = vectors.double().norm(dim=1)[:, None] * matrix.double().norm(dim=1) + exact.abs()
        error = (found.product - exact).abs()
        assert bool((error <= found.slack + ROUNDING * exact.abs()).all())
        # Useful, too: a bound is at most a hundredth of the product of the norms.
        assert bool((found.slack <= 0.015 * size + 1e-20).all())
        close = (found.exact - exact.gather(1, found.columns)).abs() / size.gather(1, found.columns)
        assert float(close.max()) < ROUNDING
        assert torch.equal(found.columns.sort().values, found.product.topk(8).indices.sort().values)


def test_a_bound_is_reached_by_a_vector_along_what_was_lost():
    matrix = random(64, 64)
    coded, basis = code_rows(matrix), torch.eye(64)
    lost = matrix - screen(coded, matrix, None, basis, 1).product.T
    found, exact = screened(matrix, lost)
    reached = (found.product - exact).abs().diagonal() / found.slack.diagonal()
    assert bool((reached <= 1).all())
    assert float(reached.min()) > 0.8


def test_exact_products_take_the_place_of_all_that_may_reach_the_cut_and_of_no_other():
    matrix, vectors = random(2000, 96), random(3, 96, seed=1)
    found, exact = screened(matrix, vectors)
    before = found.product.clone()
    cut = exact.topk(50).values[:, -1].float() - 1e-4
    count = refine_(found, matrix, None, vectors, cut)
    reaches = before + found.slack >= cut[:, None]
    assert torch.equal(count, reaches.sum(1))
    assert bool((reaches | (exact < cut[:, None])).all())
    assert torch.equal(found.product[~reaches], before[~reaches])
    torch.testing.assert_close(found.product[reaches].double(), exact[reaches], atol=1e-4, rtol=0)
    assert int(count.min()) >= 50
    assert int(count.max()) < 300


def test_a_matrix_that_is_not_the_one_in_the_copy_is_noticed():
    matrix, vectors = random(500, 96), random(1, 96, seed=1)
    found, _ = screened(matrix, vectors)
    assert int(refine_(found, 2 * matrix, None, vectors, torch.tensor([-torch.inf]))) == -1


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e17])
def test_bounds_hold_at_every_magnitude(size):
    matrix, vectors = random(200, 70), random(2, 70, seed=1)
    for scaled, others in ((matrix * size, vectors), (matrix, vectors * size), (matrix * size, vectors * 1e-12)):
        found, exact = screened(scaled, others)
        assert bool(((found.product - exact).abs() <= found.slack + ROUNDING * exact.abs()).all())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_what_is_not_finite_or_huge_is_not_screened(bad):
    matrix, vectors = random(300, 70), random(2, 70, seed=1)
    coded = code_rows(matrix)
    for place in (0, 69):
        spoiled, others = matrix.clone(), vectors.clone()
        spoiled[299, place], others[1, place] = bad, bad
        assert code_rows(spoiled) is None
        assert screen(coded, matrix, None, others, 3) is None
    if bad != -torch.inf:
        bias = torch.zeros(300).index_fill_(0, torch.tensor([7]), bad if bad != 1e30 else torch.inf)
        assert screen(coded, matrix, bias, vectors, 3) is None
    bias = torch.zeros(300).index_fill_(0, torch.tensor([7]), -torch.inf)
    assert bool((screen(coded, matrix, bias, vectors, 3).product[:, 7] == -torch.inf).all())


@pytest.mark.parametrize("dtype", [*HALVES, torch.int8, torch.float64], ids=str)
def test_a_fingerprint_sees_every_change(dtype):
    x = (50 * random(3001, 33)).to(dtype)
    seen = {fingerprint(x)}
    assert fingerprint(x.clone()) in seen
    places = [0, 1, 32, 33, 64, 50_000, x.numel() - 1]
    others = [x.flip(0), -x, x.roll(1, 0), x[:-1].contiguous(), torch.cat([x, torch.zeros_like(x[:1])])]
    for place in places:
        changed = x.clone()
        changed.view(-1)[place] += 1
        others.append(changed)
    swapped = x.clone()
    swapped[[5, 700]] = x[[700, 5]]
    negated = x.clone()
    negated[:, :2] *= -1
    seen |= {fingerprint(other) for other in [*others, swapped, negated]}
    assert len(seen) == len(others) + 3


def test_results_do_not_depend_on_the_number_of_threads():
    matrix, vectors, before = random(20_000, 128), random(5, 128, seed=1), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            screened_now, _ = screened(matrix, vectors)
            refine_(screened_now, matrix, None, vectors, torch.full((5,), 20.0))
            found.append((fingerprint(matrix), *code_rows(matrix), *screened_now))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert other[0] == found[0][0]
        assert all(torch.equal(a, b) for a, b in zip(other[1:], found[0][1:]))


def test_weights_that_the_kernel_cannot_take_are_named():
    assert screening_problem(random(3, 4)) is None
    assert "torch.float64 on cpu" in screening_problem(random(3, 4).double())
    assert screening_problem(random(3, 4).T) == "takes contiguous weights, was of strides (1, 4)"
