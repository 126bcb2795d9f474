"""Rows of few classes, by every implementation and with every kind of target, against the formula in float64."""

import shutil

import pytest
import torch

from hf_sparse.functional import MAPS
from hf_sparse.losses import fenchel_young_loss
from tests.tolerances import WEIGHT

COMPILED = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)
IMPLS = pytest.mark.parametrize("impl", ["torch", pytest.param("cpp", marks=COMPILED)])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
LOSSES = pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(("entmax", {"alpha": alpha}) for alpha in (1.001, 1.05, 1.3, 1.5, 1.75, 2.0)),
        *(("alpha_relu", {"alpha": alpha, "tau": tau}) for alpha in (1.05, 1.5, 1.75, 2.0) for tau in (-0.5, 0.8)),
    ],
)
NUM_ROWS = 6


def scores(num_classes, dtype, alpha, tau=None):
    """Normal, flat and peaked rows; for alpha-ReLU, whose weights have no bound, so that the largest is 1."""
    z = 2 * torch.randn(NUM_ROWS, num_classes, generator=torch.Generator().manual_seed(num_classes))
    z[1] *= 0.01
    z[2] *= 20
    if tau is not None:
        z += (1 + tau) / (alpha - 1) - z.amax(-1, keepdim=True)
    if num_classes > 1:
        z[3, 0] = -torch.inf
    return z.to(dtype)


def targets(kind, z):
    """Classes, or distributions without weight where a score is masked."""
    generator = torch.Generator().manual_seed(1)
    if kind == "class":
        y = torch.randint(z.shape[1], (NUM_ROWS,), generator=generator)
        y[3] = z.shape[1] - 1
        return y
    y = torch.randn(z.shape, generator=generator).exp()
    if kind == "few":
        y = y * (torch.rand(z.shape, generator=generator) < 0.3)
    y[:, -1] += 0.1
    y = y.masked_fill(z == -torch.inf, 0.0)
    return y / y.sum(-1, keepdim=True)


def rounding(z, alpha, tau=None):
    """Of a loss in float32. That of alpha-ReLU subtracts the scores themselves, which a high threshold makes large."""
    return 2e-6 if tau is None else 2e-6 + float(z.detach()[0].abs().max()) * 2**-22


def expected(name, settings, z, y):
    """``<z, p> - Omega(p) + Omega(y) - <z, y>`` and ``p - y``, float64."""
    z, known = z.double(), MAPS[name]
    if not y.is_floating_point():
        y = torch.nn.functional.one_hot(y, z.shape[1])
    p, y, omega = known.function(z, **settings), y.double(), known.loss_regularizer()
    gain = torch.where(p > 0, z, 0.0) * p - torch.where(y > 0, z, 0.0) * y
    return gain.sum(-1) - omega(p, **settings) + omega(y, **settings), p - y


@IMPLS
@DTYPES
@LOSSES
@pytest.mark.parametrize("kind", ["class", "all", "few"])
@pytest.mark.parametrize("num_classes", [1, 2, 17, 255, 256, 700])
def test_losses_and_gradients_equal_float64(num_classes, kind, name, settings, dtype, impl):
    z = scores(num_classes, dtype, **settings)
    y = targets(kind, z)
    loss, residual = expected(name, settings, z, y)
    z.requires_grad_()
    found = fenchel_young_loss(z, y, name, impl=impl, reduction="none", **settings)
    torch.testing.assert_close(found.double(), loss, atol=rounding(z, **settings), rtol=2e-6)
    factor = torch.tensor([1.0, 0.5, 2.0, 1.0, -1.0, 0.0])
    (gradient,) = torch.autograd.grad(found, z, factor)
    torch.testing.assert_close(
        gradient.double(), factor[:, None] * residual, atol=4 * WEIGHT[dtype], rtol=4 * WEIGHT[dtype]
    )


@IMPLS
@LOSSES
@pytest.mark.parametrize("kind", ["class", "all"])
def test_rows_without_a_gradient_may_hold_anything(kind, name, settings, impl):
    z = scores(300, torch.float32, **settings)
    y = targets(kind, z)
    z[4] = torch.nan
    z.requires_grad_()
    each = fenchel_young_loss(z, y, name, impl=impl, reduction="none", **settings)
    (gradient,) = torch.autograd.grad(each[:4].sum(), z)
    assert gradient.isfinite().all()
    assert not gradient[4:].any()


@IMPLS
@LOSSES
@pytest.mark.parametrize("num_classes", [7, 700, 3000])
def test_smoothed_targets(num_classes, name, settings, impl):
    """The sum of a loss and its smoothing is the loss of the smoothed distribution, whatever the implementation."""
    z = scores(num_classes, torch.float32, **settings)
    z[3, 0] = 0.0  # a masked class cannot have the weight that smoothing gives it
    y = targets("class", z)
    smoothed = 0.9 * torch.nn.functional.one_hot(y, num_classes).double() + 0.1 / num_classes
    loss, residual = expected(name, settings, z, smoothed)
    z.requires_grad_()
    found = fenchel_young_loss(z, y, name, impl=impl, reduction="none", label_smoothing=0.1, **settings)
    torch.testing.assert_close(found.double(), loss, atol=2 * rounding(z, **settings), rtol=3e-6)
    (gradient,) = torch.autograd.grad(found.sum(), z)
    torch.testing.assert_close(gradient.double(), residual, atol=2e-6, rtol=2e-6)


def test_smoothing_is_differentiated_twice_and_offsets_cancel():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(3, 9, generator=generator, dtype=torch.float64).requires_grad_()
    y = torch.tensor([0, 4, 8])

    def loss(z):
        return fenchel_young_loss(z, y, "entmax", alpha=1.5, label_smoothing=0.2, reduction="none")

    assert torch.autograd.gradcheck(loss, z)
    assert torch.autograd.gradgradcheck(loss, z)
    far = z.detach().float() + 4096
    torch.testing.assert_close(loss(far), loss(far - 4096), atol=1e-6, rtol=0)


@IMPLS
@pytest.mark.parametrize("num_classes", [7, 300, 3000])
@pytest.mark.parametrize("settings", [{"alpha": 1.5}, {"alpha": 1.5, "tau": 0.8}], ids=str)
def test_ignored_rows_may_hold_anything_in_both_derivatives(settings, num_classes, impl):
    name = "alpha_relu" if "tau" in settings else "entmax"
    z = scores(num_classes, torch.float32, **settings)
    y = targets("class", z)
    z[4], y[4] = torch.nan, -100
    found = []
    for rows in ([0, 1, 2, 3, 5], range(NUM_ROWS)):
        x = z[list(rows)].requires_grad_()
        loss = fenchel_young_loss(x, y[list(rows)], name, impl=impl, **settings)
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        found.append((loss, *(each if len(each) == 5 else each[[0, 1, 2, 3, 5]] for each in (first, second))))
        if len(x) == NUM_ROWS:
            assert not first[4].any()
            assert not second[4].any()
    for one, two in zip(*found):
        torch.testing.assert_close(one, two)
