"""The balanced temperature: curvature as large as softmax's at sqrt(V) equally likely classes."""

import math

import pytest
import torch

from hf_sparse.functional import balanced_temperature
from hf_sparse.losses import fenchel_young_loss


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_the_curvature_is_that_of_softmax_at_the_middle_of_the_way(alpha):
    """Among 16 of 256 classes, the others far below: the Hessian of T L(z / T) is that of cross-entropy."""
    k, temperature = 16, balanced_temperature(alpha, 256)
    z = torch.full((256,), -1e3, dtype=torch.float64)
    z[:k] = 0.0

    def curvature(name, temperature, **settings):
        def loss(z):
            target = torch.zeros(1, dtype=torch.long)
            return temperature * fenchel_young_loss(z[None] / temperature, target, name, **settings)

        return torch.autograd.functional.hessian(loss, z)[:k, :k]

    expected = curvature("softmax", 1.0)
    torch.testing.assert_close(expected, torch.eye(k, dtype=z.dtype) / k - 1 / k**2)
    torch.testing.assert_close(curvature("entmax", temperature, alpha=alpha), expected, atol=1e-9, rtol=1e-6)


def test_its_values():
    assert balanced_temperature(1.0, 50_257) == 1.0
    assert balanced_temperature(2.0, 10_000) == pytest.approx(100.0)
    assert balanced_temperature(1.5, 10_000) == pytest.approx(10.0)
    assert balanced_temperature(1.5, 1) == 1.0
    assert balanced_temperature(999.0, 50_257) == math.inf


@pytest.mark.parametrize(("alpha", "classes", "error", "message"), [
    (0.9, 10, ValueError, "alpha must be >= 1 and finite, was 0.9"),
    (math.nan, 10, ValueError, "alpha must be >= 1 and finite, was nan"),
    ("auto", 10, TypeError, "alpha must be >= 1 and finite, was 'auto'"),
    (1.5, 0, ValueError, "vocab_size must be at least 1, was 0"),
    (1.5, 2.0, TypeError, "vocab_size must be a whole number, was 2.0"),
])  # fmt: skip
def test_what_is_out_of_range_is_refused(alpha, classes, error, message):
    with pytest.raises(error, match=message):
        balanced_temperature(alpha, classes)
