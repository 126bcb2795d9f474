"""The gradient of the entmax loss in alpha: Danskin's formula against finite differences and its limit at 1."""

import pytest
import torch

from hf_sparse.losses import entmax_loss
from hf_sparse.losses._learned_alpha import tsallis_negentropy_in_alpha

Z = 1.5 * torch.randn(5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 3, -100])
SOFT = torch.softmax(Z.flip(0), -1)


def value_and_derivative(alpha, target, z=Z, **options):
    alpha = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    value = entmax_loss(z, target, alpha, **options)
    return value.item(), torch.autograd.grad(value, alpha)[0].item()


@pytest.mark.parametrize("target", [Y, SOFT], ids=["class", "soft"])
@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.3, 1.5, 1.9])
def test_value_is_that_of_a_number(alpha, target):
    assert value_and_derivative(alpha, target)[0] == pytest.approx(entmax_loss(Z, target, alpha).item(), abs=1e-9)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}], ids=str)
@pytest.mark.parametrize("target", [Y, SOFT], ids=["class", "soft"])
@pytest.mark.parametrize("alpha", [1.01, 1.3, 1.5, 1.9])
def test_derivative_is_the_slope_of_the_loss(alpha, target, options):
    step = 1e-5
    slope = (entmax_loss(Z, target, alpha + step, **options) - entmax_loss(Z, target, alpha - step, **options)) / 2e-5
    assert value_and_derivative(alpha, target, **options)[1] == pytest.approx(slope.item(), abs=1e-6)


def test_derivative_at_one_is_its_limit():
    """``dOmega/dalpha -> sum p log^2 p / 2 - sum p log p``, so the loss falls by that of the softmax weights."""
    p = torch.softmax(Z[:4], -1)
    limit = (p * p.log() ** 2).sum(-1) / 2 - (p * p.log()).sum(-1)
    derivative = value_and_derivative(1.0, Y)[1]
    assert derivative == pytest.approx(-limit.mean().item(), rel=1e-12)
    assert value_and_derivative(1 + 1e-6, Y)[1] == pytest.approx(derivative, abs=1e-5)


def test_first_and_second_derivatives_in_scores_and_alpha():
    z = Z[:4].clone().requires_grad_()
    for start in (1.2, 1.6):
        alpha = torch.full((4, 1), start, dtype=torch.float64).add_(0.03 * torch.arange(4)[:, None]).requires_grad_()
        for target in (Y[:4], SOFT[:4]):
            assert torch.autograd.gradcheck(lambda z, a, t=target: entmax_loss(z, t, a, reduction="none"), (z, alpha))
            assert torch.autograd.gradgradcheck(
                lambda z, a, t=target: entmax_loss(z, t, a, reduction="none"), (z, alpha)
            )


def test_every_row_may_have_its_own():
    alpha = torch.tensor([[1.0], [1.2], [1.5], [2.0], [1.1]], dtype=torch.float64)
    each = entmax_loss(Z, Y, alpha, reduction="none")
    expected = [entmax_loss(Z[i : i + 1], Y[i : i + 1], float(alpha[i])) for i in range(5)]
    torch.testing.assert_close(each, torch.stack(expected), atol=1e-9, rtol=1e-9)
    shaped = entmax_loss(Z[:4].view(2, 2, 6), Y[:4].view(2, 2), alpha[:2].view(2, 1, 1), reduction="none")
    torch.testing.assert_close(shaped[0], entmax_loss(Z[:2], Y[:2], 1.0, reduction="none"))


def test_ignored_rows_do_not_reach_alpha():
    z = Z.clone()
    z[4] = torch.nan
    assert value_and_derivative(1.4, Y, z) == pytest.approx(value_and_derivative(1.4, Y[:4], Z[:4]))
    entmax_loss(z.requires_grad_(), Y, torch.tensor(1.4, dtype=z.dtype, requires_grad=True)).backward()
    assert bool(z.grad[:4].isfinite().all())
    assert not bool(z.grad[4].any())


@pytest.mark.parametrize("alpha", [1.0, 1.0 + 1e-9, 1.005, 1.02, 1.5, 2.0])
def test_regularizer_is_the_tsallis_negentropy(alpha):
    p = torch.tensor([[0.5, 0.3, 0.2, 0.0]], dtype=torch.float64)
    found = tsallis_negentropy_in_alpha(p, torch.tensor(alpha, dtype=torch.float64))
    expected = torch.xlogy(p, p).sum() if alpha - 1 < 1e-6 else ((p**alpha).sum() - 1) / (alpha * (alpha - 1))
    assert found.item() == pytest.approx(expected.item(), abs=1e-8)


def test_misuse_is_refused_in_words():
    with pytest.raises(ValueError, match=r"alpha must broadcast .*, to \(5, 1\); was \(4, 1\)"):
        entmax_loss(Z, Y, torch.ones(4, 1))


@pytest.mark.parametrize("entry", [torch.nan, torch.inf])
@pytest.mark.parametrize("length", [6, 1100])
def test_a_row_without_weights_has_no_loss(length, entry):
    z = torch.randn(2, length, generator=torch.Generator().manual_seed(0))
    z[0, 2] = entry
    loss = entmax_loss(z, torch.tensor([1, 0]), torch.tensor(1.4), reduction="none")
    assert loss.isnan().tolist() == [True, False]
    along = torch.func.vmap(lambda z: entmax_loss(z, torch.tensor(1), torch.tensor(1.4)))(z)
    assert along.isnan().tolist() == [True, False]
