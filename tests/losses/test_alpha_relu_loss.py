"""The alpha-ReLU loss against its definition from the map and the regularizer, and against autograd."""

import pytest
import torch
import torch.nn.functional as F

from hf_sparse.losses import alpha_relu_loss

CASES = [(1.3, 0.4), (1.5, 0.9), (2.0, 1.5), (3.0, 2.0)]


def rows(num_rows, num_classes, std=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(num_classes)
    z = std * torch.randn(num_rows, num_classes, generator=generator, dtype=torch.float64)
    return z.to(dtype), torch.randint(num_classes, (num_rows,), generator=generator)


def weights(z, alpha, tau):
    return ((alpha - 1) * z - tau).clamp(min=0) ** (1 / (alpha - 1))


def by_definition(z, y, alpha, tau):
    """``(p - y)^T z + H(p) - H(y)`` with ``H(p) = (1 - sum p^alpha)/(alpha(alpha-1)) - tau sum p / (alpha - 1)``."""
    p = weights(z, alpha, tau)

    def entropy(q):
        return (1 - (q**alpha).sum(-1)) / (alpha * (alpha - 1)) - tau * q.sum(-1) / (alpha - 1)

    return ((p - y) * z).sum(-1) + entropy(p) - entropy(y)


def loss_and_gradient(z, *arguments, **options):
    z = z.clone().requires_grad_()
    value = alpha_relu_loss(z, *arguments, **options)
    return value.detach(), torch.autograd.grad(value.sum(), z)[0]


@pytest.mark.parametrize("num_classes", [6, 1500, 1511])
@pytest.mark.parametrize(("alpha", "tau"), [*CASES, (1.5, -3.0)])
def test_value_is_the_definition_and_gradient_is_p_minus_y(alpha, tau, num_classes):
    z, y = rows(4, num_classes)
    one_hot = F.one_hot(y, num_classes).double()
    soft = torch.softmax(3 * z.flip(0), -1)
    for target, distribution in ((y, one_hot), (soft, soft)):
        value, gradient = loss_and_gradient(z, target, alpha, tau, reduction="none")
        torch.testing.assert_close(value, by_definition(z, distribution, alpha, tau))
        torch.testing.assert_close(gradient, weights(z, alpha, tau) - distribution)


@pytest.mark.parametrize(("alpha", "tau"), CASES)
def test_zero_iff_the_target_alone_has_weight_one(alpha, tau):
    for num_classes in (6, 1500):
        z = torch.full((1, num_classes), tau / (alpha - 1) - 0.1, dtype=torch.float64)
        z[0, 2] = (1 + tau) / (alpha - 1)
        assert alpha_relu_loss(z, torch.tensor([2]), alpha, tau).item() == pytest.approx(0, abs=1e-15)
        assert alpha_relu_loss(z + 0.01, torch.tensor([2]), alpha, tau) > 1e-6
        assert alpha_relu_loss(z, torch.tensor([1]), alpha, tau) > 1e-2


@pytest.mark.parametrize("num_classes", [5, 1030])
@pytest.mark.parametrize(("alpha", "tau"), CASES)
def test_first_and_second_derivatives(alpha, tau, num_classes):
    z, y = rows(2, num_classes, 3.0)
    rest = z[:, 4:] - 90
    head = (z[:, :4] + 2).clone().requires_grad_()

    def loss(head):
        return alpha_relu_loss(torch.cat([head, rest], -1), y % 4, alpha, tau, reduction="none")

    assert torch.autograd.gradcheck(loss, head)
    assert torch.autograd.gradgradcheck(loss, head)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_classes", [8, 2003])
def test_half_precision_is_computed_in_float32(num_classes, dtype):
    z, y = rows(4, num_classes, 2.0, dtype)
    value, gradient = loss_and_gradient(z, y, 1.5, 0.9)
    expected, wide_gradient = loss_and_gradient(z.float(), y, 1.5, 0.9)
    assert (value.dtype, gradient.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, wide_gradient.to(dtype))


@pytest.mark.parametrize("num_classes", [8, 2003])
def test_nan_stays_in_its_row_and_ignored_rows_may_hold_anything(num_classes):
    z, y = rows(3, num_classes)
    clean, clean_gradient = loss_and_gradient(z[:2], y[:2], 1.5, 0.9)
    z[2, 1] = torch.nan
    value, gradient = loss_and_gradient(z, torch.where(torch.arange(3) == 2, -100, y), 1.5, 0.9)
    torch.testing.assert_close(value, clean)
    torch.testing.assert_close(gradient[:2], clean_gradient)
    assert not gradient[2].any()
    each, gradient = loss_and_gradient(z, y, 1.5, 0.9, reduction="none")
    assert each.isnan().tolist() == [False, False, True]
    assert not gradient[:2].isnan().any()


def test_masked_classes_have_no_weight():
    for num_classes in (8, 2000):
        z, _ = rows(2, num_classes)
        z[:, 1::2] = -torch.inf
        value, gradient = loss_and_gradient(z, torch.tensor([0, 4]), 1.5, 0.2)
        expected, kept = loss_and_gradient(z[:, ::2], torch.tensor([0, 2]), 1.5, 0.2)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(gradient[:, ::2], kept)
        assert not gradient[:, 1::2].any()


def test_many_small_weights_add_up():
    z = torch.full((1, 50_000), 2.0)
    z[0, 25_000:] = -9.0
    value = alpha_relu_loss(z, torch.tensor([49_999]), 1.5, 0.99)
    # 25,000 entries with u = 0.01, and the target at u = -5.49
    assert value.item() == pytest.approx((25_000 * 0.01**3 - 1) / 1.5 + (1 + 5.49) * 2, rel=1e-6)


def test_compiled_loss_takes_the_dense_path_and_agrees():
    z, y = rows(4, 1500)
    compiled = torch.compile(alpha_relu_loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(z, y, 1.5, 0.9), alpha_relu_loss(z, y, 1.5, 0.9))


def test_one_row_that_is_mostly_support_leaves_the_others_on_theirs():
    z, y = rows(3, 2000)
    z[1] += 9
    saved = []
    leaf = z.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        value = alpha_relu_loss(leaf, y, 1.5, 1.2, reduction="none")
    assert 2000 <= max(saved) < 3 * 2000
    torch.testing.assert_close(value.detach(), by_definition(z, F.one_hot(y, 2000).double(), 1.5, 1.2))
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    torch.testing.assert_close(gradient, weights(z, 1.5, 1.2) - F.one_hot(y, 2000).double())
