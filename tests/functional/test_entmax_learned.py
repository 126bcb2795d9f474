import pytest
import torch

from hf_sparse.functional import entmax
from tests.tolerances import WEIGHT


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
