import pytest
import torch

from hf_sparse.functional import (
    MAPS,
    get_map,
    softmax,
    sparsegen_exp,
    sparsegen_lin,
    sparsegen_log,
    sparsegen_sq,
    sparsemax,
    spherical_softmax,
)
from tests.tolerances import WEIGHT

TRANSFORMS = {
    sparsegen_lin: (lambda z: z, torch.ones_like),
    sparsegen_exp: (torch.exp, torch.exp),
    sparsegen_sq: (torch.square, lambda z: 2 * z),
    sparsegen_log: (torch.log, lambda z: 1 / z),
}
ALL = pytest.mark.parametrize("function", TRANSFORMS, ids=lambda function: function.__name__)


def scores(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 1.5 + 0.1


@ALL
@pytest.mark.parametrize("lam", [-3.0, 0.0, 0.6])
def test_weights_solve_the_projection_problem_they_are_defined_by(function, lam):
    z = scores(5)
    g = TRANSFORMS[function][0](z)
    p = function(z, lam)

    def objective(p):
        return ((p - g) ** 2).sum(-1) - lam * (p**2).sum(-1)

    others = torch.distributions.Dirichlet(torch.full((5,), 0.5, dtype=torch.float64)).sample((500,))
    near = p + 0.01 * (others - p)
    assert bool((objective(others) >= objective(p)).all())
    assert bool((objective(near) >= objective(p)).all())


@ALL
@pytest.mark.parametrize("lam", [-1.0, 0.5])
def test_jacobian_is_the_closed_form(function, lam):
    z = scores(5)
    transform, slope = TRANSFORMS[function]
    s = (sparsemax(transform(z) / (1 - lam)) > 0).double()
    expected = (torch.diag(s) - torch.outer(s, s) / s.sum()) @ torch.diag(slope(z)) / (1 - lam)
    actual = torch.autograd.functional.jacobian(lambda z: function(z, lam), z)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)


@ALL
def test_lam_goes_from_uniform_to_hardmax(function):
    z = scores(6)
    torch.testing.assert_close(function(z, -1e9), torch.full_like(z, 1 / 6), atol=1e-7, rtol=0)
    assert function(z, 1 - 1e-6).tolist() == torch.nn.functional.one_hot(z.argmax(), 6).tolist()
    sizes = [int((function(z, lam) > 0).sum()) for lam in (-5.0, 0.0, 0.8, 0.99)]
    assert sizes == sorted(sizes, reverse=True)


def test_special_cases_are_sparsemax_softmax_and_spherical_softmax():
    z = scores(4)
    torch.testing.assert_close(sparsegen_lin(z), sparsemax(z), atol=1e-15, rtol=0)
    torch.testing.assert_close(sparsegen_exp(z, 1 - float(z.exp().sum())), softmax(z), atol=1e-12, rtol=0)
    torch.testing.assert_close(sparsegen_sq(z, 1 - float(z.square().sum())), spherical_softmax(z), atol=1e-12, rtol=0)


def test_sparsegen_log_is_scale_invariant():
    z = scores(4)
    torch.testing.assert_close(sparsegen_log(7 * z), sparsegen_log(z), atol=1e-12, rtol=0)


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_masked_entries_and_rows_get_zero_weight_and_zero_gradient(function, dtype):
    z = scores(3, 4).to(dtype)
    z[0], z[1, 2] = -torch.inf, -torch.inf
    z.requires_grad_()
    p = function(z)
    assert p.dtype == dtype
    assert bool((p[0] == 0).all())
    assert p[1, 2].item() == 0
    without = function(z[1, [0, 1, 3]])
    torch.testing.assert_close(p[1, [0, 1, 3]], without, atol=WEIGHT[dtype], rtol=0)
    (p.float() * torch.arange(4)).sum().backward()
    assert bool(z.grad.isfinite().all())
    assert bool((z.grad[0] == 0).all())
    assert float(z.grad[1, 2]) == 0


@ALL
def test_gradients_twice_and_along_any_dim(function):
    z = scores(3, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: function(z, 0.2, dim=0), z)
    assert torch.autograd.gradgradcheck(lambda z: function(z, 0.2, dim=0), z)


@ALL
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_lam_in_half_precision_is_computed_with_in_float32(function, dtype):
    z, lam = scores(3, 5).float(), torch.tensor([[-2.7], [-0.3], [0.2]], dtype=dtype)
    torch.testing.assert_close(function(z, lam), function(z, lam.float()), atol=0, rtol=0)


@ALL
def test_lam_of_one_or_more_is_refused(function):
    for lam in (1.0, 2.0, float("nan")):
        with pytest.raises(ValueError, match=r"lam must be a number from -1000000000 to 0.999999, was"):
            function(scores(3), lam)


def test_sparsegen_log_refuses_scores_that_have_no_logarithm():
    with pytest.raises(ValueError, match=r"needs scores > 0 \(or -inf, masked\), the smallest was -1"):
        sparsegen_log(torch.tensor([-1.0, 2.0]))


def test_the_regularizer_of_sparsegen_lin_is_the_one_whose_maximizer_it_is():
    z, omega = scores(4), get_map("sparsegen_lin").regularizer
    p = sparsegen_lin(z, 0.4)
    others = torch.distributions.Dirichlet(torch.ones(4, dtype=torch.float64)).sample((200,))
    assert bool((others @ z - omega(others, lam=0.4) <= p @ z - omega(p, lam=0.4)).all())
    assert float(omega(torch.tensor([0.0, 1.0]), lam=0.4)) == 0


def test_maps_without_a_regularizer_say_so_when_a_loss_is_asked_for():
    for sparse_map in MAPS.values():
        if sparse_map.regularizer is not None:
            assert sparse_map.loss_regularizer() is sparse_map.regularizer
            continue
        reason = "is not the gradient of a function" if sparse_map.bounds is None else "needs bounds on its weights"
        reason = "weighs attention and gives no distribution" if sparse_map.attention_only else reason
        with pytest.raises(ValueError, match=f"'{sparse_map.name}' {reason}.*'sparsemax'"):
            sparse_map.loss_regularizer()
