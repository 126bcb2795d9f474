import shutil

import pytest
import torch

from hf_sparse.functional import entmax
from tests.reference import clusters, entmax_by_bisection
from tests.tolerances import GRADIENT, WEIGHT

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)


def scores(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul(2).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_every_row_gets_its_own_alpha(dtype):
    alphas = [1.0, 1.001, 1.05, 1.3, 1.5, 2.0]
    z = scores(2, len(alphas), 3, 7, dtype=dtype)
    p = entmax(z, torch.tensor(alphas, dtype=dtype).double()[:, None, None])
    assert p.dtype == dtype
    for head, alpha in enumerate(torch.tensor(alphas, dtype=dtype).tolist()):
        torch.testing.assert_close(p[:, head], entmax(z[:, head], alpha), atol=2 * WEIGHT[dtype], rtol=0)


def test_alpha_may_vary_along_any_axis_but_the_mapped_one():
    z, alpha = scores(3, 5, 4), torch.tensor([1.2, 1.4, 1.9, 1.0], dtype=torch.float64)
    p = entmax(z, alpha, dim=1)
    for column in range(4):
        torch.testing.assert_close(
            p[..., column], entmax(z[..., column], float(alpha[column]), dim=1), atol=1e-9, rtol=0
        )


@pytest.mark.parametrize("alpha", [1.01, 1.2, 1.5, 1.9])
def test_gradients_to_scores_and_alpha_twice(alpha):
    z = scores(2, 2, 5).requires_grad_()
    alpha = torch.tensor([[alpha], [alpha + 0.07]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(entmax, (z, alpha))
    assert torch.autograd.gradgradcheck(entmax, (z, alpha))


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0])
def test_gradient_in_alpha_equals_the_formula_of_correia_et_al(alpha):
    z = scores(6)
    p = entmax(z, alpha)
    slope = torch.autograd.functional.jacobian(lambda a: entmax(z, a), torch.tensor(alpha, dtype=torch.float64))
    s = torch.where(p > 0, p.pow(2 - alpha), 0.0)
    q, h = s / s.sum(), -torch.xlogy(p, p)
    expected = (p - q) / (alpha - 1) ** 2 + (h - q * h.sum()) / (alpha - 1)
    torch.testing.assert_close(slope, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gradient_in_alpha_tends_to_its_limit_at_softmax(dtype):
    z = scores(6)
    p = torch.softmax(z, -1)
    limit = p * ((p * p.log() ** 2).sum() - p.log() ** 2) / 2
    for distance in (0.0, 1e-9, 1e-6, 1e-4):
        slope = torch.autograd.functional.jacobian(
            lambda a: entmax(z.to(dtype), a), torch.tensor(1 + distance, dtype=dtype)
        )
        torch.testing.assert_close(slope.double(), limit, atol=2 * distance + 1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_masked_rows_ties_and_nan_rows(dtype):
    z = torch.zeros(4, 3, dtype=dtype)
    z[0], z[1, 1], z[2, 0] = -torch.inf, -torch.inf, torch.nan
    z.requires_grad_()
    alpha = torch.tensor([1.5, 1.0, 1.2, 2.0], dtype=dtype)[:, None].requires_grad_()
    p = entmax(z, alpha)
    expected = torch.tensor([[0.0, 0, 0], [0.5, 0, 0.5], [torch.nan] * 3, [1 / 3] * 3], dtype=dtype)
    torch.testing.assert_close(p, expected, atol=1e-6, rtol=0, equal_nan=True)
    torch.where(p.isnan(), 0.0, p * torch.arange(3)).sum().backward()
    assert bool(z.grad[[0, 1, 3]].isfinite().all())
    assert bool((z.grad[0] == 0).all())
    assert float(alpha.grad[0]) == 0


def test_vmap_over_scores_over_alpha_and_over_both():
    z, alpha = scores(3, 2, 5), torch.tensor([[1.1], [1.6]], dtype=torch.float64)
    expected = entmax(z, alpha)
    torch.testing.assert_close(torch.func.vmap(entmax, (0, None))(z, alpha), expected)
    torch.testing.assert_close(torch.func.vmap(entmax, (1, 0), 1)(z, alpha), expected)
    torch.testing.assert_close(
        torch.func.vmap(entmax, (None, 0), 1)(z[:, 0], alpha),
        torch.stack([entmax(z[:, 0], 1.1), entmax(z[:, 0], 1.6)], 1),
        atol=1e-9,
        rtol=0,
    )


@pytest.mark.parametrize(
    ("alpha", "error", "message"),
    [
        (torch.tensor([0.9]), ValueError, r"a tensor alpha must be in \[1, 2\], was in \[0.89"),
        (torch.tensor([1.0, 2.5]).view(2, 1), ValueError, r"was in \[1.0, 2.5\]"),
        (torch.tensor([1.5, 1.5, 1.5]), ValueError, r"size 1 along dim -1; its shape was \(3,\) .* shape \(2, 3\)"),
        (torch.full((4, 1), 1.5), ValueError, "must broadcast over the rows"),
        (torch.full((1, 2, 1), 1.5), TypeError, "at most 2 dimensions"),
        (torch.tensor([1]), TypeError, "floating-point tensor"),
    ],
)
def test_a_tensor_alpha_that_cannot_be_is_refused(alpha, error, message):
    with pytest.raises(error, match=message):
        entmax(torch.zeros(2, 3), alpha)


@needs_compiler
@pytest.mark.parametrize("length", [1, 7, 300, 5000])
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_the_kernel_gives_weights_and_gradients_of_float64(length, scale):
    alphas = [1.0, 1 + 1e-6, 1.001, 1.1, 1.33, 1.5, 1.9, 2.0]
    z = (scores(2, len(alphas), 3, length, seed=length) * scale).float()
    z[0, 2, 1, length // 2 :] = -torch.inf
    upstream = scores(*z.shape, seed=1).float()
    found = {}
    for impl, dtype in (("cpp", torch.float32), ("torch", torch.float64)):
        x = z.detach().to(dtype).requires_grad_()
        alpha = torch.tensor(alphas).to(dtype)[:, None, None].detach().requires_grad_()
        p = entmax(x, alpha, impl=impl)
        gradients = torch.autograd.grad(p, (x, alpha), upstream.to(dtype))
        found[impl] = [each.detach().double() for each in (p, *gradients)]
    (p, for_z, for_alpha), expected = found["cpp"], found["torch"]
    torch.testing.assert_close(p, expected[0], atol=WEIGHT[torch.float32], rtol=0)
    torch.testing.assert_close(for_z, expected[1], atol=GRADIENT[torch.float32] * upstream.abs().max(), rtol=0)
    torch.testing.assert_close(for_alpha, expected[2], atol=1e-3, rtol=1e-4)


@needs_compiler
def test_the_kernel_keeps_masked_rows_nan_rows_and_gradients_off_the_support():
    z = torch.tensor([[-torch.inf] * 3, [0.0, torch.nan, 1.0], [9.0, 0.0, 0.0], [1.0, 1.0, 1.0]], requires_grad=True)
    alpha = torch.tensor([1.5, 1.2, 2.0, 1.0])[:, None].requires_grad_()
    p = entmax(z, alpha, impl="cpp")
    expected = torch.tensor([[0.0] * 3, [torch.nan] * 3, [1.0, 0, 0], [1 / 3] * 3])
    torch.testing.assert_close(p, expected, atol=1e-6, rtol=0, equal_nan=True)
    p.backward(torch.tensor([[1.0] * 3, [1.0] * 3, [1.0, torch.inf, torch.nan], [1.0, 2.0, 3.0]]))
    assert z.grad[[0, 2]].tolist() == [[0.0] * 3] * 2
    assert alpha.grad[[0, 2], 0].tolist() == [0.0, 0.0]
    assert bool(alpha.grad[3].isfinite())


@needs_compiler
def test_the_kernel_steps_back_where_a_second_derivative_or_a_transform_is_wanted():
    z = scores(2, 3, 6).float().requires_grad_()
    alpha = torch.tensor([[1.3], [1.5], [1.7]], requires_grad=True)
    sums = {}
    for impl in ("cpp", "torch"):
        gradient = torch.autograd.grad(entmax(z, alpha, impl=impl)[..., 0].sum(), alpha, create_graph=True)[0]
        sums[impl] = torch.autograd.grad(gradient.square().sum(), z)[0]
        rows = torch.func.vmap(torch.func.grad(lambda x, impl=impl: entmax(x, alpha, impl=impl)[:, 0].sum()))(z)
        sums[impl + " by rows"] = rows.detach()
    torch.testing.assert_close(sums["cpp"], sums["torch"], atol=1e-4, rtol=0)
    torch.testing.assert_close(sums["cpp by rows"], sums["torch by rows"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_rows_solved_alpha_by_alpha_and_all_together_are_the_same(dtype):
    alpha = torch.tensor([1.0, 1.001, 1.0999, 1.1, 1.3, 2.0], dtype=dtype)[:, None, None].requires_grad_()
    z, upstream = (scores(1, 6, 128, 160, seed=seed, dtype=dtype) for seed in (0, 1))
    z[0, 1, 2, 3:] = -torch.inf
    z.requires_grad_()
    long_runs = entmax(z, alpha, impl="torch")
    # Heads next to each other: every row has another alpha than the one before.
    no_runs = entmax(z.transpose(1, 2), alpha[:, 0], impl="torch").transpose(1, 2)
    torch.testing.assert_close(long_runs, no_runs, atol=2 * WEIGHT[dtype], rtol=0)
    found, expected = (torch.autograd.grad(p, (z, alpha), upstream) for p in (long_runs, no_runs))
    torch.testing.assert_close(found[0], expected[0], atol=GRADIENT[dtype], rtol=0)
    torch.testing.assert_close(found[1], expected[1], atol=128 * GRADIENT[dtype], rtol=1e-5)  # of as many rows


@pytest.mark.parametrize("alpha", [1.3, 1.5, 1.9, 2.0])
@pytest.mark.parametrize("length", [500, 4000])
def test_clusters_of_ties_near_the_threshold_are_no_less_exact_without_runs(alpha, length):
    z = torch.cat([clusters(length, alpha)[::31], ties_far_below_one_score(length, alpha)])
    alphas = torch.full((len(z), 1), alpha)
    alphas[::2] -= 0.01
    p = entmax(z, alphas, impl="torch")
    for one in (slice(0, None, 2), slice(1, None, 2)):
        wanted = entmax_by_bisection(z[one], float(alphas[one][0]))
        torch.testing.assert_close(p[one].double(), wanted, atol=WEIGHT[torch.float32], rtol=0)


def ties_far_below_one_score(length, alpha):
    z = -torch.linspace(0.1, 0.99, 20)[:, None].repeat(1, length) / (alpha - 1)
    z[:, 7] = 0
    return z


def test_a_run_of_one_alpha_has_the_gradient_of_a_number_bit_for_bit():
    """What the forward pass saved requires a gradient, and is no reason for other powers than those of a number."""
    z, upstream = torch.randn(2, 64, 300, generator=torch.Generator().manual_seed(0)), torch.randn(2, 64, 300)
    for alpha in (1.1875, 1.5, 1.75):
        gradients = []
        for setting in (alpha, torch.full((2, 1, 1), alpha)):
            scores = z.clone().requires_grad_()
            entmax(scores, setting, impl="torch").backward(upstream)
            gradients.append(scores.grad)
        assert torch.equal(*gradients)


def test_a_backward_pass_under_autocast_does_not_round_the_gradient_of_alpha():
    alpha = torch.full((16, 1), 1.4, requires_grad=True)
    z, upstream = scores(16, 2048).float(), scores(16, 2048, seed=1).float()
    (expected,) = torch.autograd.grad(entmax(z, alpha, impl="torch"), alpha, upstream)
    p = entmax(z, alpha, impl="torch")
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = torch.autograd.grad(p, alpha, upstream)
    torch.testing.assert_close(found, expected)
