"""The price of softmax mass outside a support: its definition, its gradient, and what it refuses."""

import math

import pytest
import torch

from hf_sparse.functional import alpha_relu, entmax15, sparsemax
from hf_sparse.losses import suppression_loss

N, V = 12, 30


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, V, generator=generator, dtype=torch.float64), torch.arange(N) % V


@pytest.mark.parametrize("sparse_map", [sparsemax, entmax15, lambda z: alpha_relu(z, alpha=1.5, tau=0.5)])
def test_it_is_the_logarithm_of_the_mass_that_is_left(rows, sparse_map):
    z, y = rows
    p, q = sparse_map(z), z.softmax(-1)
    outside = (p == 0) & ~torch.nn.functional.one_hot(y, V).bool()
    expected = -torch.log1p(-(q * outside).sum(-1))
    assert float(expected.min()) > 0.01
    torch.testing.assert_close(suppression_loss(z, y, p, reduction="none"), expected)
    torch.testing.assert_close(suppression_loss(z, y, p), expected.mean())


def test_its_gradient_takes_from_what_is_outside_and_gives_to_what_is_inside(rows):
    z, y = rows
    p = sparsemax(z)
    assert torch.autograd.gradcheck(lambda z: suppression_loss(z, y, p), z.clone().requires_grad_())
    assert torch.autograd.gradgradcheck(lambda z: suppression_loss(z, y, p), z.clone().requires_grad_())
    scores = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(suppression_loss(scores, y, p, reduction="sum"), scores)
    inside = (p > 0) | torch.nn.functional.one_hot(y, V).bool()
    assert bool((gradient[~inside] > 0).all())
    assert bool((gradient[inside] < 0).all())
    torch.testing.assert_close(gradient.sum(-1), torch.zeros(N, dtype=z.dtype), atol=1e-12, rtol=0)


def test_it_keeps_its_gradient_where_nearly_all_mass_is_outside():
    z = torch.zeros(1, 10_000, requires_grad=True)
    p = torch.zeros(1, 10_000)
    p[0, 0] = 1.0
    loss = suppression_loss(z, torch.tensor([0]), p)
    assert loss.item() == pytest.approx(math.log(10_000), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, z)
    assert float(gradient[0, 0]) == pytest.approx(1e-4 - 1, rel=1e-5)


def test_a_full_support_costs_nothing_and_ignored_rows_add_nothing(rows):
    z, y = rows
    assert suppression_loss(z, y, z.softmax(-1)).item() == 0
    p = sparsemax(z)
    some = y.masked_fill(torch.arange(N) % 2 == 0, -100)
    torch.testing.assert_close(suppression_loss(z, some, p), suppression_loss(z[1::2], y[1::2], p[1::2]))
    summed = suppression_loss(z, some, p, reduction="sum")
    torch.testing.assert_close(suppression_loss(z, some, p, num_items=4), summed / 4)
    assert suppression_loss(z, torch.full_like(y, -100), p).item() == 0


def test_half_precision_is_summed_in_float32(rows):
    z, y = rows
    z = z.bfloat16()
    loss = suppression_loss(z, y, sparsemax(z))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, suppression_loss(z.float(), y, sparsemax(z)))


def test_what_does_not_fit_is_refused(rows):
    z, y = rows
    with pytest.raises(ValueError, match=r"logits and p must both be \(..., V\), were \(12, 30\) and \(12, 29\)"):
        suppression_loss(z, y, sparsemax(z[:, 1:]))
    with pytest.raises(TypeError, match=r"target must hold class indices \(int64\), was torch.float32"):
        suppression_loss(z, y.float(), sparsemax(z))
    with pytest.raises(IndexError, match="target must be in"):
        suppression_loss(z, y + V, sparsemax(z))
    with pytest.raises(ValueError, match="reduction must be one of"):
        suppression_loss(z, y, sparsemax(z), reduction="max")


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.torch.jit.trace:DeprecationWarning")
def test_it_is_traced():
    z, y = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([1, -100, 2])

    def loss(z):
        return suppression_loss(z, y, sparsemax(z))

    torch.testing.assert_close(torch.jit.trace(loss, (z,), check_trace=False)(2 * z), loss(2 * z))
