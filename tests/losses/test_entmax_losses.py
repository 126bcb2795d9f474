"""Values and derivatives of the entmax losses against closed forms, bisection, and the entmax package."""

import entmax as package
import pytest
import torch
import torch.nn.functional as F

from hf_sparse.functional import entmax
from hf_sparse.losses import entmax15_loss, entmax_loss, fenchel_young_loss, softmax_loss, sparsemax_loss

ALPHAS = [1.05, 1.3, 1.5, 2.0]


def rows(num_rows, num_classes, std=1.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    z = std * torch.randn(num_rows, num_classes, generator=generator, dtype=torch.float64)
    return z.to(dtype), torch.randint(num_classes, (num_rows,), generator=generator)


def by_bisection(z, alpha):
    """entmax in float64, from its definition."""
    x = (alpha - 1) * z.double()
    low, high = x.amax(-1, keepdim=True) - 1, x.amax(-1, keepdim=True)
    for _ in range(200):
        tau = (low + high) / 2
        heavy = ((x - tau).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) >= 1
        low, high = torch.where(heavy, tau, low), torch.where(heavy, high, tau)
    p = (x - low).clamp(min=0) ** (1 / (alpha - 1))
    return p / p.sum(-1, keepdim=True)


def by_definition(z, y, alpha):
    """``(p - y)^T z + H(p) - H(y)`` for distributions y."""
    p = by_bisection(z, alpha)

    def entropy(q):
        return (1 - (q**alpha).sum(-1)) / (alpha * (alpha - 1))

    return ((p - y) * z.double()).sum(-1) + entropy(p) - entropy(y)


def loss_and_gradient(loss, z, *arguments, **options):
    z = z.clone().requires_grad_()
    value = loss(z, *arguments, **options)
    return value.detach(), torch.autograd.grad(value.sum(), z)[0]


@pytest.mark.parametrize("num_classes", [2, 7, 3000])
@pytest.mark.parametrize("std", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_value_is_the_definition_and_gradient_is_p_minus_onehot(alpha, std, num_classes):
    z, y = rows(4, num_classes, std)
    one_hot = F.one_hot(y, num_classes).double()
    value, gradient = loss_and_gradient(entmax_loss, z, y, alpha, reduction="none")
    torch.testing.assert_close(value, by_definition(z, one_hot, alpha), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(gradient, by_bisection(z, alpha) - one_hot, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("num_classes", [5, 3000])
@pytest.mark.parametrize("alpha", [*ALPHAS, 2.5])
def test_soft_targets(alpha, num_classes):
    z, _ = rows(4, num_classes, 2.0)
    y = torch.softmax(3 * rows(4, num_classes, seed=1)[0], -1)
    value, gradient = loss_and_gradient(entmax_loss, z, y, alpha, reduction="none")
    torch.testing.assert_close(value, by_definition(z, y, alpha), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(gradient, by_bisection(z, alpha) - y, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("num_classes", [5, 2000])
def test_soft_target_that_is_onehot_is_the_class(num_classes):
    z, y = rows(6, num_classes)
    for name in ("softmax", "entmax15", "sparsemax"):
        soft = fenchel_young_loss(z, F.one_hot(y, num_classes).double(), name)
        torch.testing.assert_close(soft, fenchel_young_loss(z, y, name))


@pytest.mark.parametrize("num_classes", [5, 2000])
def test_loss_is_zero_at_its_own_weights(num_classes):
    z, _ = rows(4, num_classes)
    for alpha in (1.0, 1.3, 1.5, 2.0):
        value, gradient = loss_and_gradient(entmax_loss, z, entmax(z, alpha), alpha, reduction="none")
        torch.testing.assert_close(value, torch.zeros_like(value), atol=1e-7, rtol=0)
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-7, rtol=0)


@pytest.mark.parametrize("num_classes", [6, 1500])
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_zero_once_the_target_leads_by_the_margin(alpha, num_classes):
    z = torch.zeros(1, num_classes)
    z[0, 3] = 1 / (alpha - 1)
    value, gradient = loss_and_gradient(entmax_loss, z, torch.tensor([3]), alpha)
    assert value.item() == pytest.approx(0, abs=1e-7)
    assert gradient.abs().max().item() == pytest.approx(0, abs=1e-6)
    assert entmax_loss(z - 0.1 * F.one_hot(torch.tensor([3]), num_classes), torch.tensor([3]), alpha) > 1e-5


def test_agrees_with_the_entmax_package():
    z, y = rows(8, 1200, 3.0)
    for mine, theirs in (
        (sparsemax_loss, package.sparsemax_loss),
        (entmax15_loss, package.entmax15_loss),
        (lambda z, y, **o: entmax_loss(z, y, 1.3, **o), lambda z, y: package.entmax_bisect_loss(z, y, 1.3, 100)),
    ):
        value, gradient = loss_and_gradient(mine, z, y, reduction="none")
        expected, their_gradient = loss_and_gradient(theirs, z, y)
        torch.testing.assert_close(value, expected, atol=1e-7, rtol=1e-6)
        torch.testing.assert_close(gradient, their_gradient, atol=1e-7, rtol=1e-6)


def test_named_losses_are_members_of_the_family():
    z, y = rows(5, 9)
    torch.testing.assert_close(softmax_loss(z, y), F.cross_entropy(z, y))
    torch.testing.assert_close(entmax_loss(z, y, 1.0), F.cross_entropy(z, y))
    torch.testing.assert_close(entmax_loss(z, y, 1.0 + 1e-5), F.cross_entropy(z, y), atol=1e-4, rtol=0)
    torch.testing.assert_close(entmax15_loss(z, y), entmax_loss(z, y))
    torch.testing.assert_close(sparsemax_loss(z, y), entmax_loss(z, y, 2.0))


def test_softmax_loss_of_distributions_is_the_kl_divergence():
    z, _ = rows(5, 9)
    q = torch.softmax(rows(5, 9, seed=3)[0], -1)
    expected = F.kl_div(z.log_softmax(-1), q, reduction="none").sum(-1)
    torch.testing.assert_close(softmax_loss(z, q, reduction="none"), expected)


@pytest.mark.parametrize(
    ("alpha", "num_classes"), [(1.0, 6), (1.3, 6), (1.5, 6), (2.0, 6), (2.5, 6), (1.3, 1100), (1.5, 1100), (2.0, 1100)]
)
def test_first_and_second_derivatives(alpha, num_classes):
    z, y = rows(2, num_classes)
    z[:, 4:] -= 60.0  # four moving scores over a long flat rest
    head = z[:, :4].clone().requires_grad_()

    def loss(head):
        return entmax_loss(torch.cat([head, z[:, 4:]], -1), y % 4, alpha, reduction="none")

    assert torch.autograd.gradcheck(loss, head)
    assert torch.autograd.gradgradcheck(loss, head)


def test_second_derivative_of_long_rows_is_the_jacobian_of_entmax():
    z, y = rows(3, 1500, 2.0)
    direction = rows(3, 1500, seed=5)[0]
    for alpha in (1.3, 1.5, 2.0):
        z.requires_grad_()
        (gradient,) = torch.autograd.grad(entmax_loss(z, y, alpha, reduction="sum"), z, create_graph=True)
        (product,) = torch.autograd.grad(gradient, z, direction)
        p = by_bisection(z.detach(), alpha)
        s = torch.where(p > 0, p, 1.0) ** (2 - alpha) * (p > 0)
        expected = s * (direction - (s * direction).sum(-1, keepdim=True) / s.sum(-1, keepdim=True))
        torch.testing.assert_close(product, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_one_batch_of_short_supports_and_dense_rows(alpha):
    z, y = rows(6, 2048)
    z[::2] *= 1e-3  # all classes in the support
    one_hot = F.one_hot(y, 2048).double()
    value, gradient = loss_and_gradient(entmax_loss, z, y, alpha, reduction="none")
    torch.testing.assert_close(value, by_definition(z, one_hot, alpha), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(gradient, by_bisection(z, alpha) - one_hot, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("num_classes", [8, 2000])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_offsets_change_nothing(alpha, num_classes):
    z, y = rows(4, num_classes, 3.0, dtype=torch.float32)
    z = (z * 16).round() / 16  # so that adding the offset does not round z itself
    value, gradient = loss_and_gradient(entmax_loss, z, y, alpha)
    for offset in (-1e3, 1e5):
        moved, moved_gradient = loss_and_gradient(entmax_loss, z + offset, y, alpha)
        torch.testing.assert_close(moved, value)
        torch.testing.assert_close(moved_gradient, gradient)


@pytest.mark.parametrize("num_classes", [8, 2000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_half_precision_is_computed_in_float32(alpha, dtype, num_classes):
    z, y = rows(4, num_classes, 3.0, dtype=dtype)
    value, gradient = loss_and_gradient(entmax_loss, z, y, alpha)
    expected, wide_gradient = loss_and_gradient(entmax_loss, z.float(), y, alpha)
    assert (value.dtype, gradient.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, wide_gradient.to(dtype))


@pytest.mark.parametrize("num_classes", [8, 2000])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_masked_classes_do_not_exist(alpha, num_classes):
    z, _ = rows(3, num_classes, 2.0)
    kept = torch.arange(num_classes) % 2 == 0
    y = torch.tensor([0, 2, 4])
    value, gradient = loss_and_gradient(entmax_loss, z.masked_fill(~kept, -torch.inf), y, alpha)
    expected, kept_gradient = loss_and_gradient(entmax_loss, z[:, kept], y // 2, alpha)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient[:, kept], kept_gradient)
    assert not gradient[:, ~kept].any()


@pytest.mark.parametrize("num_classes", [8, 2000])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_nan_stays_in_its_row_and_ignored_rows_may_hold_anything(alpha, num_classes):
    z, y = rows(3, num_classes)
    clean, clean_gradient = loss_and_gradient(entmax_loss, z[:2], y[:2], alpha)
    for rubbish in (torch.nan, -torch.inf, torch.inf):
        spoiled = z.clone()
        spoiled[2] = rubbish
        ignored = torch.where(torch.arange(3) == 2, -100, y)
        value, gradient = loss_and_gradient(entmax_loss, spoiled, ignored, alpha)
        torch.testing.assert_close(value, clean)
        torch.testing.assert_close(gradient[:2], clean_gradient)
        assert not gradient[2].any()
    spoiled[2, 1] = torch.nan
    each, gradient = loss_and_gradient(entmax_loss, spoiled, y, alpha, reduction="none")
    assert each.isnan().tolist() == [False, False, True]
    assert not gradient[:2].isnan().any()


def test_compiled_loss_takes_the_dense_path_and_agrees():
    z, y = rows(4, 1500)
    compiled = torch.compile(entmax15_loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(z, y), entmax15_loss(z, y))


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_one_class_is_always_right(alpha):
    value, gradient = loss_and_gradient(entmax_loss, torch.tensor([[3.0]]), torch.tensor([0]), alpha)
    assert value == 0
    assert gradient.tolist() == [[0.0]]
