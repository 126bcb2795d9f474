import pytest
import torch

from hf_sparse.functional import (
    sparsecone,
    sparsehourglass,
    sparsemax,
    spherical_softmax,
    sum_normalization,
    sum_normalization_pp,
)


def scores(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("q", [0.1, 1.0, 5.0])
def test_jacobian_of_sparsehourglass_is_the_closed_form(q):
    for seed in range(5):
        z = scores(4, seed=seed)
        distance = z.sum().abs() + 4 * q
        a = (1 + 4 * q) / distance
        s = (sparsemax(z * a) > 0).double()
        projection = torch.diag(s) - torch.outer(s, s) / s.sum()
        stretch = torch.eye(4) - z.sum().sign() * torch.outer(z, torch.ones(4, dtype=torch.float64)) / distance
        actual = torch.autograd.functional.jacobian(lambda z: sparsehourglass(z, q), z)
        torch.testing.assert_close(actual, projection @ (a * stretch), atol=1e-12, rtol=0)


def test_q_goes_from_scale_invariance_to_sparsemax():
    z = scores(5)
    torch.testing.assert_close(sparsehourglass(z, 0.0), sparsehourglass(3 * z, 0.0), atol=1e-12, rtol=0)
    torch.testing.assert_close(sparsehourglass(z, 1e9), sparsemax(z), atol=1e-8, rtol=0)
    assert not torch.allclose(sparsehourglass(z, 0.5), sparsehourglass(z, 5.0), atol=1e-3)


def test_sparsecone_is_sparsehourglass_where_scores_sum_to_something_positive():
    z = scores(5).abs()
    torch.testing.assert_close(sparsecone(z, 0.7), sparsehourglass(z, 0.7), atol=1e-15, rtol=0)
    low = -scores(5).abs() * 0.1
    assert not torch.allclose(sparsecone(low, 0.7), sparsehourglass(low, 0.7), atol=1e-3)


def test_sum_normalizations():
    z = scores(3, 5).abs()
    torch.testing.assert_close(sum_normalization(z), z / z.sum(-1, keepdim=True), atol=1e-15, rtol=0)
    torch.testing.assert_close(sum_normalization_pp(z), sum_normalization(z), atol=1e-12, rtol=0)
    mixed = torch.tensor([-3.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(sum_normalization_pp(mixed), sparsemax(mixed / 2), atol=1e-15, rtol=0)
    assert bool(sum_normalization_pp(torch.tensor([1.0, -1.0])).isnan().all())


def test_spherical_softmax_of_large_scores_does_not_overflow():
    z = torch.tensor([3e30, -4e30, 0.0])
    torch.testing.assert_close(spherical_softmax(z), torch.tensor([0.36, 0.64, 0.0]))
    assert bool(spherical_softmax(torch.zeros(3)).isnan().all())


@pytest.mark.parametrize(
    "function", [sparsehourglass, sparsecone, sum_normalization, sum_normalization_pp, spherical_softmax]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_masked_entries_do_not_count_and_masked_rows_are_zero(function, dtype):
    z = scores(3, 4).abs().to(dtype)
    z[0], z[1, 2] = -torch.inf, -torch.inf
    z.requires_grad_()
    p = function(z)
    assert p.dtype == dtype
    assert bool((p[0] == 0).all())
    torch.testing.assert_close(p[1, [0, 1, 3]], function(z[1, [0, 1, 3]]), atol=1e-3, rtol=0)
    assert float(p[1, 2].detach()) == 0
    (p.float() * torch.arange(4)).sum().backward()
    assert bool(z.grad.isfinite().all())
    assert bool((z.grad[0] == 0).all())
    assert float(z.grad[1, 2]) == 0


@pytest.mark.parametrize(
    "function", [sparsehourglass, sparsecone, sum_normalization, sum_normalization_pp, spherical_softmax]
)
def test_gradients_twice_and_along_any_dim(function):
    z = scores(4, 2).abs().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: function(z, dim=0), z)
    assert torch.autograd.gradgradcheck(lambda z: function(z, dim=0), z)
    torch.testing.assert_close(function(z, dim=0), function(z.mT).mT)


@pytest.mark.parametrize("function", [sparsehourglass, sparsecone])
def test_negative_q_is_refused(function):
    with pytest.raises(ValueError, match="q must be a number from 0 to 1000000000, was -1"):
        function(torch.ones(2), -1.0)


def test_scores_outside_a_domain_are_refused():
    with pytest.raises(ValueError, match=r"sum z \+ K q > 0 in every row, the smallest was -1; use sparsehourglass"):
        sparsecone(torch.tensor([-2.0, -1.0]), q=1.0)
    with pytest.raises(ValueError, match="needs scores >= 0, the smallest was -1; use sum_normalization_pp"):
        sum_normalization(torch.tensor([2.0, -1.0]))
