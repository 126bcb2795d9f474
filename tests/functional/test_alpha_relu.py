import pytest
import torch

from hf_sparse.functional import alpha_relu


def scores(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("tau", [-0.5, 0.2])
def test_weights_are_the_definition_and_the_jacobian_is_diagonal(alpha, tau):
    z = scores(7)
    p = alpha_relu(z, alpha, tau)
    torch.testing.assert_close(p, ((alpha - 1) * z - tau).clamp(min=0) ** (1 / (alpha - 1)), atol=1e-14, rtol=0)
    jacobian = torch.autograd.functional.jacobian(lambda z: alpha_relu(z, alpha, tau), z)
    expected = torch.diag(torch.where(p > 0, p.pow(2 - alpha), 0.0))
    torch.testing.assert_close(jacobian, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("alpha", [1.001, 1.05, 1.25, 1.5, 1.7, 2.0, 3.0, 5.0])
def test_weights_are_the_same_where_no_gradient_is_wanted(alpha, dtype):
    z = (scores(5, 300) * 3).to(dtype)
    z[0, 3], z[1, 2], z[2, :50], z[3] = torch.nan, torch.inf, -torch.inf, -torch.inf
    for tau in (-1.0, 0.0, 0.3, 2.0):
        p, expected = alpha_relu(z, alpha, tau), alpha_relu(z.clone().requires_grad_(), alpha, tau).detach()
        assert torch.equal(p > 0, expected > 0)
        eps = torch.finfo(dtype).eps
        rtol = 32 * eps / min(alpha - 1, 1)  # the rounding of u is multiplied by the exponent
        torch.testing.assert_close(p, expected, atol=eps, rtol=rtol, equal_nan=True)


def test_tensor_alpha_and_tau_broadcast_to_the_scores_and_get_gradients():
    z = (scores(2, 3, 4) + 1).requires_grad_()
    alpha = torch.tensor([1.3, 1.5, 1.9], dtype=torch.float64)[:, None].requires_grad_()
    tau = torch.tensor([[-0.4]], dtype=torch.float64, requires_grad=True)
    p = alpha_relu(z, alpha, tau)
    for head in range(3):
        torch.testing.assert_close(p[:, head], alpha_relu(z[:, head], float(alpha.detach()[head]), -0.4))
    assert torch.autograd.gradcheck(alpha_relu, (z, alpha, tau))
    assert torch.autograd.gradgradcheck(alpha_relu, (z, alpha, tau))


def test_a_masked_entry_sends_no_gradient_to_alpha():
    z = torch.tensor([1.0, -torch.inf])
    alpha = torch.tensor(1.5, requires_grad=True)
    p = alpha_relu(z, alpha, 0.1)
    p.sum().backward()
    assert p[1].item() == 0
    assert bool(alpha.grad.isfinite())


def test_nan_stays_in_its_place():
    assert alpha_relu(torch.tensor([torch.nan, 1.0]), 1.5, 0.0).isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("alpha", "tau", "error", "message"),
    [
        (1.0, 0.0, ValueError, "alpha must be a number from 1.001 to 5, was 1.0"),
        (1.5, float("inf"), ValueError, "tau must be a number from -1000000 to 1000000, was inf"),
        (1.5, "auto", TypeError, "tau must be a number from -1000000 to 1000000, was 'auto'"),
        (
            torch.tensor([2]),
            0.0,
            TypeError,
            "alpha must be a number from 1.001 to 5, or a floating-point tensor of such, was torch.int64",
        ),
        (1.5, torch.zeros(2), ValueError, r"tau must broadcast to the scores \(3,\), was of shape \(2,\)"),
    ],
)
def test_mistakes_are_named(alpha, tau, error, message):
    with pytest.raises(error, match=message):
        alpha_relu(torch.zeros(3), alpha, tau)
