"""Candidates from a product in bfloat16 hold the support of entmax in float64, with exact scores, and little more."""

import shutil

import pytest
import torch

from hf_sparse.functional import entmax
from hf_sparse.kernels import bfloat16_is_fast, list_candidates, round_rows

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def listed(h, w, alpha, bias=None, most=None, tau=None):
    return list_candidates(h, w, round_rows(w), bias, alpha, 1 / (alpha - 1), tau, most or len(w))


def check(h, w, alpha, bias=None):
    """Compare with float64; returns the numbers of candidates and of weights."""
    found = listed(h, w, alpha, bias)
    z = h.double() @ w.double().T + (0 if bias is None else bias.double())
    taken = found.scores > -torch.inf
    at = z.gather(1, found.columns)
    size = h.double().norm(dim=1)[:, None] * w.double().norm(dim=1)[found.columns] + at.abs()
    assert bool((((found.scores - at).abs() <= 1e-6 * size + 1e-30) | ~taken).all())
    assert bool((found.columns.diff(dim=1) > 0)[taken[:, 1:]].all())
    p = entmax(z, alpha, impl="torch")
    own = torch.zeros_like(p).scatter_add_(1, found.columns, entmax(found.scores.double(), alpha, impl="torch"))
    assert bool(((own - p).abs() <= 1e-6 + 2e-6 * size.amax(1, keepdim=True)).all())
    return taken.sum(1), (p > 0).sum(1)


@pytest.mark.parametrize("alpha", [1.02, 1.1, 1.25, 1.5, 1.8, 2.0])
@pytest.mark.parametrize("width", [1, 7, 64, 100])
@pytest.mark.parametrize("length", [5, 64, 3001])
def test_candidates_hold_the_support_and_their_scores_are_exact(length, width, alpha):
    h, w = 2 * random(9, width), random(length, width, seed=1)
    for bias in (None, random(length, seed=2)):
        check(h, w, alpha, bias)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("tau", [-1.0, 0.5, 4.0, 1e4])
def test_candidates_of_a_threshold_that_is_given(tau, alpha):
    h, w, bias = random(9, 70), random(500, 70, seed=1), random(500, seed=2)
    found = listed(h, w, alpha, bias, tau=tau)
    x = (alpha - 1) * (h.double() @ w.double().T + bias.double())
    taken = torch.zeros_like(x).scatter_add_(1, found.columns, (found.scores > -torch.inf).double())
    assert bool((taken[x > tau] == 1).all())
    assert float((x - tau)[taken == 1].min() if taken.any() else 0.0) > -1.5 * (alpha - 1)
    assert found.scores.shape[1] > 0  # maps take no empty rows


def test_there_are_few_more_candidates_than_weights():
    candidates, support = check(random(20, 512), 0.4 * random(5000, 512, seed=1), 1.5)
    assert int(candidates.sum()) < 3 * int(support.sum())


ADVERSARIAL = {
    "ties": lambda w: w[1::2].copy_(w[::2]),
    "all equal": lambda w: w.copy_(w[:1].expand_as(w).clone()),
    "zeros": lambda w: w.zero_(),
    "one column": lambda w: w[:, 3].mul_(1e3),
    "one huge row": lambda w: w[7].mul_(1e4),
    "tiny": lambda w: w.mul_(1e-25),
    "close calls": lambda w: w.copy_(w[:1] * (1 + 1e-3 * random(len(w), 1, seed=3))),
    "halfway between two": lambda w: w.copy_(1 + 2.0**-8 * torch.randint(-2, 3, w.shape)),
}


@pytest.mark.parametrize("spoil", ADVERSARIAL.values(), ids=ADVERSARIAL)
@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0])
def test_weights_that_are_hard_on_a_bound(spoil, alpha):
    w = random(600, 80, seed=1)
    spoil(w)
    for size in (1.0, 1e-30, 30.0, 0.0):
        check(size * random(4, 80), w, alpha)


def test_rows_with_too_many_candidates_are_left_to_others():
    h, w = random(3, 40), random(200, 40, seed=1)
    most = int(check(h, w, 1.5)[0].max())
    assert listed(h, w, 1.5, most=most) is not None
    assert listed(h, w, 1.5, most=most - 1) is None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_what_is_not_finite_or_huge_is_left_to_others(bad):
    h, w, bias = random(3, 40), random(200, 40, seed=1), torch.zeros(200)
    for x in (h, w):
        spoiled = x.clone()
        spoiled[2, 39] = bad
        assert round_rows(spoiled) is None
        if x is h:
            assert listed(spoiled, w, 1.5) is None
    if abs(bad) != 1e30:
        bias[7] = bad
        assert listed(h, w, 1.5, bias) is None


def test_a_product_of_other_factors_is_noticed():
    h, w = random(3, 40), random(200, 40, seed=1)
    assert list_candidates(h, 2 * w, round_rows(w), None, 1.5, 2.0, None, 200) is None


def test_results_do_not_depend_on_the_number_of_threads():
    h, w, before = random(40, 64), random(9000, 64, seed=1), torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append((*round_rows(w), *listed(h, w, 1.5)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(other, found[0]))


@pytest.mark.parametrize(
    ("capability", "amx", "fast"), [("AVX512", True, True), ("AVX512", False, False), ("AVX2", True, False)], ids=str
)
def test_bfloat16_is_fast_where_torch_may_use_amx(capability, amx, fast, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": amx}, raising=False)
    assert bfloat16_is_fast() == fast
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)  # an older torch
    assert not bfloat16_is_fast()


def test_what_rounding_loses_of_tiny_weights_is_bounded_though_its_square_underflows():
    w = torch.zeros(3, 64)
    w[0, :32], w[0, 32:] = 2.0**-57 * (1 + 0.99 * 2**-9), 2.0**-57
    h = torch.full((1, 64), 2.0**54)
    h[:, 32:] *= -1
    bias = torch.tensor([0.0, 0.004, 0.003])
    found = list_candidates(h, w, round_rows(w), bias, 2.0, 1.0, 0.0045, 3)
    assert 0 in found.columns[0].tolist()
