"""Rows of which a large part is in the support, from softmax to sparsemax, against float64."""

import shutil

import pytest
import torch

from hf_sparse import kernels
from hf_sparse.functional import entmax
from hf_sparse.losses import alpha_relu_loss, entmax_loss, softmax_loss
from tests.tolerances import WEIGHT

COMPILED = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)
IMPLS = pytest.mark.parametrize("impl", ["torch", pytest.param("cpp", marks=COMPILED)])
ALPHAS = pytest.mark.parametrize("alpha", [1 + 2e-7, 1.001, 1.02, 1.1, 4 / 3, 1.5, 1.75, 2.0])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
LENGTH = 4999


def scores(dtype=torch.float32):
    """Rows of all densities: equal, ascending, flat, peaked over a flat floor, normal, sparse."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(6, LENGTH, generator=generator)
    rows = [
        normal[0] * 0,
        torch.linspace(-1e-2, 0, LENGTH),
        normal[1] * 1e-2,
        normal[2] * 1e-2,
        normal[3],
        normal[4] * 20,
    ]
    z = torch.stack(rows)
    z[3, 7] = 0.5
    z[:, 11] = -torch.inf
    return z.to(dtype)


TARGET = torch.tensor([0, LENGTH - 1, 1, 7, 4, 5])


def weights(z, alpha):
    """By bisection on the deformed logarithm of the mass, float64."""
    a, x = alpha - 1, z.double() - z.double().amax(-1, keepdim=True)
    low, high = torch.zeros(len(z), 1, dtype=torch.float64), torch.full((len(z), 1), 12.0, dtype=torch.float64)
    for _ in range(80):
        mu = (low + high) / 2
        heavy = power(x - mu, a).sum(-1, keepdim=True) >= 1
        low, high = torch.where(heavy, mu, low), torch.where(heavy, high, mu)
    p = power(x - low, a)
    return p / p.sum(-1, keepdim=True)


def power(t, a):
    """``[1 + a t]_+ ^ (1 / a)``."""
    base = (a * t).clamp(min=-1)
    return torch.where(base > -1, (base.log1p() / a).exp(), 0.0)


def conjugate(z, p, alpha):
    """``<p, z> - Omega(p)``, less the largest score."""
    a, x = alpha - 1, z.double() - z.double().amax(-1, keepdim=True)
    excess = torch.expm1(a * torch.where(p > 0, p, 1.0).log())
    return torch.where(p > 0, p * x, 0.0).sum(-1) - (p * excess).sum(-1) / (alpha * a)


@COMPILED
def test_some_of_these_rows_are_crowded_and_some_are_not():
    crowded = kernels.entmax_supports(scores(), 1.3, 1 / 0.3).crowded
    assert 0 < int(crowded.sum()) < 6


@IMPLS
@ALPHAS
@DTYPES
def test_losses_and_gradients_equal_float64(alpha, dtype, impl):
    z = scores(dtype).requires_grad_()
    loss = entmax_loss(z, TARGET, alpha, reduction="none", impl=impl)
    p = weights(z.detach(), alpha)
    gold = (z.detach().double() - z.detach().double().amax(-1, keepdim=True)).gather(1, TARGET[:, None])[:, 0]
    torch.testing.assert_close(loss.double(), conjugate(z.detach(), p, alpha) - gold, atol=2e-6, rtol=1e-6)
    factor = torch.tensor([1.0, 0.5, 2.0, 1.0, -1.0, 0.0])
    (gradient,) = torch.autograd.grad(loss, z, factor)
    expected = factor[:, None] * p.scatter_add(1, TARGET[:, None], -torch.ones(6, 1, dtype=torch.float64))
    torch.testing.assert_close(gradient.double(), expected, atol=2 * WEIGHT[dtype], rtol=0)


@IMPLS
@ALPHAS
@DTYPES
def test_weights_equal_float64(alpha, dtype, impl):
    z = scores(dtype)
    torch.testing.assert_close(entmax(z, alpha, impl=impl).double(), weights(z, alpha), atol=WEIGHT[dtype], rtol=0)
    short = z[:, :300]
    torch.testing.assert_close(
        entmax(short, alpha, impl=impl).double(), weights(short, alpha), atol=WEIGHT[dtype], rtol=0
    )


@pytest.mark.parametrize(
    ("shift", "impl"),
    [(0.7, "torch"), pytest.param(0.7, "cpp", marks=COMPILED), pytest.param(31.0, "cpp", marks=COMPILED)],
)
@pytest.mark.parametrize("alpha", [1.001, 1.02, 1.1, 1.3, 1.5, 2.0])
@DTYPES
def test_alpha_relu_equals_float64(alpha, dtype, shift, impl):
    """Where the threshold is high, the excess has fewer digits than the power needs; the kernel keeps it apart."""
    z = scores(dtype).masked_fill(torch.tensor([False] * 5 + [True])[:, None], 0.0).float()
    z = ((z - z.amax(-1, keepdim=True)) / 8 + shift / (alpha - 1)).to(dtype)
    tau = float((alpha - 1) * z.max().double() - 1)

    def loss(x, by):
        return alpha_relu_loss(x, TARGET, alpha, tau, reduction="none", impl=by)

    ours, exact = z.clone().requires_grad_(), z.double().requires_grad_()
    torch.testing.assert_close(loss(ours, impl).double(), loss(exact, "torch"), atol=1e-5, rtol=2e-6)
    (found,), (expected,) = (torch.autograd.grad(loss(x, by).sum(), x) for x, by in ((ours, impl), (exact, "torch")))
    torch.testing.assert_close(found.double(), expected, atol=WEIGHT[dtype], rtol=2 * WEIGHT[dtype])


@IMPLS
@pytest.mark.parametrize("alpha", [1.02, 1.5])
def test_distributions_as_targets_and_second_derivatives(alpha, impl):
    z = scores()[:, 12:].requires_grad_()  # without the masked one, whose target weight would be infinite
    y = torch.softmax(torch.randn(z.shape, generator=torch.Generator().manual_seed(1)), -1)
    upstream = torch.randn(z.shape, generator=torch.Generator().manual_seed(2))
    for target in (y, TARGET.clamp(max=4000)):
        found = []
        for x, by in ((z, impl), (z.detach().double().requires_grad_(), "torch")):
            loss = entmax_loss(x, target.to(x.dtype) if target is y else target, alpha, impl=by)
            (first,) = torch.autograd.grad(loss, x, create_graph=True)
            (plain,) = torch.autograd.grad(
                entmax_loss(x, target.to(x.dtype) if target is y else target, alpha, impl=by), x
            )
            torch.testing.assert_close(plain, first.detach(), atol=1e-6, rtol=0)
            (second,) = torch.autograd.grad((first * upstream.to(x.dtype)).sum(), x)
            found.append((loss.detach().double(), first.detach().double(), second.double()))
        for ours, theirs in zip(*found):
            torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)


@IMPLS
def test_bad_rows_stay_alone_and_ignored_rows_may_be_anything(impl):
    z = scores()
    z[1, 5], z[2, 4000] = torch.nan, torch.inf
    z[4] = -torch.inf
    z.requires_grad_()
    loss = entmax_loss(z, TARGET.masked_fill(torch.tensor([0, 1, 1, 0, 1, 0]).bool(), -100), 1.3, impl=impl)
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(z.grad.isfinite().all())
    assert not bool(z.grad[[1, 2, 4]].any())
    each = entmax_loss(z, TARGET, 1.3, reduction="none", impl=impl)
    assert each[[1, 2]].isnan().all()
    assert each[[0, 3, 5]].isfinite().all()


@IMPLS
@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0])
def test_a_row_of_nan_has_no_finite_gradient_where_no_other_row_lists_its_weights(alpha, impl):
    z = scores()[4:5].clone()
    z[0, 5] = torch.nan
    z.requires_grad_()
    entmax_loss(z, TARGET[4:5], alpha, impl=impl).backward()
    assert bool(z.grad.isnan().any())


@IMPLS
@pytest.mark.parametrize("offset", [1e12, 1e20, -3e38])
def test_cross_entropy_of_scores_far_from_zero_has_the_gradient_of_their_differences(offset, impl):
    z = torch.full((1, LENGTH), offset)
    z[0, 7] = z[0, 7].nextafter(torch.tensor(-torch.inf))  # too far below the others to have weight
    z.requires_grad_()
    softmax_loss(z, TARGET[:1], impl=impl).backward()
    expected = torch.full((1, LENGTH), 1 / (LENGTH - 1)).index_fill(1, torch.tensor(7), 0.0)
    expected[0, TARGET[0]] -= 1
    torch.testing.assert_close(z.grad, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("alpha", [2.2, 3.0, 20.0])
def test_long_rows_at_an_alpha_above_two(alpha):
    z = scores().masked_fill_(scores().isinf(), 0.0).requires_grad_()
    entmax_loss(z, TARGET, alpha, reduction="sum").backward()
    expected = entmax(z.detach().double(), alpha, impl="torch")
    expected[torch.arange(len(z)), TARGET] -= 1
    torch.testing.assert_close(z.grad, expected.float(), atol=1e-5, rtol=1e-5)


@IMPLS
@pytest.mark.parametrize("alpha", [1.02, 1.3, 1.75, 1.95])
def test_ties_at_the_threshold_leave_the_weights_right(alpha, impl):
    """A few scores share the mass but a sliver, and thousands lie together just above the threshold, or below it.

    Float32 sums of so many equal numbers are all rounded alike: on four lanes by up to 2e-6.
    """
    few, rest = 40, LENGTH - 40
    ahead = few ** -(alpha - 1) / (alpha - 1)
    sliver = torch.tensor([-1e-3, -1e-5, 0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2])[:, None]
    z = torch.cat([torch.full((9, few), ahead), sliver * ahead + torch.linspace(0, 1e-6, rest) * ahead], 1)
    p = entmax(z, alpha, impl=impl).double()
    torch.testing.assert_close(p, weights(z, alpha), atol=WEIGHT[torch.float32], rtol=0)
    torch.testing.assert_close(p.sum(-1), torch.ones(9, dtype=torch.float64), atol=2e-6, rtol=0)


@COMPILED
@pytest.mark.parametrize("alpha", [1.001, 1.1, 1.49, 1.75, 1.97])
def test_thresholds_foretold_from_a_sample_of_a_long_row_are_those_of_float64(alpha):
    """Samples that tell the sums well, or not at all; entries that join the support, or leave it, at the last step."""
    length, generator = 50_257, torch.Generator().manual_seed(1)
    normal = torch.randn(16, length, generator=generator)
    spread = normal[:4] * torch.tensor([1e-3, 0.05, 0.3, 2.0])[:, None]
    sampled = normal[4:6] * 0.05
    sampled[0, ::256] += 1.0
    sampled[1, : length // 2] += 0.3
    tied = []
    for few, slivers in ((1, (0.0, 1e-4, 1e-3)), (3, (-1e-5, 0.0, 1e-5, 3e-3)), (1000, (0.0, 1e-4, 1e-3))):
        ahead = few ** -(alpha - 1) / (alpha - 1)
        for sliver in slivers:
            z = ahead * (sliver + 1e-6 * normal[6 + len(tied)])
            z[torch.randperm(length, generator=generator)[:few]] = ahead
            tied.append(z)
    z = torch.cat([spread, sampled, torch.stack(tied)]).requires_grad_()
    target = torch.randint(length, (len(z),), generator=generator)
    loss = entmax_loss(z, target, alpha, reduction="none", impl="cpp")
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    z = z.detach().double()
    p = weights(z, alpha)
    gold = (z - z.amax(-1, keepdim=True)).gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(loss.double(), conjugate(z, p, alpha) - gold, atol=2e-6, rtol=1e-6)
    residual = p.scatter_add(1, target[:, None], -torch.ones(len(z), 1, dtype=torch.float64))
    torch.testing.assert_close(gradient.double(), residual, atol=2 * WEIGHT[torch.float32], rtol=0)
    torch.testing.assert_close(gradient.double().sum(-1), torch.zeros(len(z), dtype=torch.float64), atol=1e-5, rtol=0)


@IMPLS
def test_crowded_rows_among_others_change_none_of_them(impl):
    z = torch.cat([scores()[[2, 5, 4]], scores()[[3, 5, 0, 5]]])
    target = torch.tensor([3, 5, 4, 7, 5, 0, 5])

    def gradients(x):
        x = x.detach().requires_grad_()
        losses = entmax_loss(x, target[: len(x)], 1.3, reduction="none", impl=impl)
        return losses.detach(), torch.autograd.grad(losses.sum(), x)[0]

    loss, gradient = gradients(z)
    p = weights(z, 1.3)
    expected = p.scatter_add(1, target[:, None], -torch.ones(7, 1, dtype=torch.float64))
    torch.testing.assert_close(gradient.double(), expected, atol=2e-6, rtol=0)
    torch.testing.assert_close(loss[1], gradients(z[[1, 1]])[0][0] + z[1, 3] - z[1, 5], atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.75, 2.0])
def test_rows_whose_sample_is_unlike_the_rest_are_solved_all_the_same(alpha):
    """Torch solves one entry in sixteen first; here those are far above the others, or far below."""
    z = torch.randn(2, LENGTH, generator=torch.Generator().manual_seed(3)) * 1e-2
    z[0, ::16] += 0.5
    z[1, ::16] -= 0.5
    z.requires_grad_()
    entmax_loss(z, torch.tensor([0, 1]), alpha, reduction="sum", impl="torch").backward()
    expected = weights(z.detach(), alpha)
    expected[0, 0] -= 1
    expected[1, 1] -= 1
    torch.testing.assert_close(z.grad.double(), expected, atol=2e-6, rtol=0)
