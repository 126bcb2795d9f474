"""Gradients that are written chunk by chunk are those of the formula."""

from functools import partial

import pytest
import torch

from hf_sparse.functional import MAPS
from hf_sparse.functional.log_zero import LOG_ZERO, log_or_floor_
from tests.tolerances import GRADIENT

# More than two chunks of 2^17 numbers.
SHAPE = (2800, 97)
SETTINGS = {
    "alpha_relu": [{"alpha": alpha, "tau": 0.1} for alpha in (1.05, 1.3, 1.5, 2.0, 3.0)],
    "softmax1": [{}],
    "softpick": [{}],
    "sparsecone": [{"q": 100.0}],
    "sparsegen_exp": [{"lam": 0.3}],
    "sparsegen_lin": [{"lam": -0.5}],
    "sparsegen_log": [{"lam": 0.3}],
    "sparsegen_sq": [{"lam": 0.3}],
    "sparsehourglass": [{"q": 0.0}, {"q": 0.7}],
    "spherical_softmax": [{}],
    "sum_normalization_pp": [{}],
}
CASES = [(name, settings) for name, all_settings in SETTINGS.items() for settings in all_settings]


def scores(name: str, dtype: torch.dtype) -> torch.Tensor:
    """Ties, zeros, masked scores and masked rows."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(SHAPE, generator=generator).to(dtype)
    z[::3] = (2 * z[::3]).round()
    if not MAPS[name].any_scores:
        z = z.abs() + 0.1
    z = z.masked_fill(torch.rand(SHAPE, generator=generator) < 0.3, -torch.inf)
    z[1000:1003] = -torch.inf
    return z


def gradients(name: str, settings: dict, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient as it is written, and as autograd finds it for one that is differentiated again."""
    z = scores(name, dtype).requires_grad_()
    upstream = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)).to(dtype)
    p = MAPS[name].function(z, **settings)
    (written,) = torch.autograd.grad(p, z, upstream, retain_graph=True)
    (again,) = torch.autograd.grad(p, z, upstream, create_graph=True)
    assert again.requires_grad
    return written, again.detach()


@pytest.mark.parametrize(("name", "settings"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_those_of_the_formula(name, settings, dtype):
    written, again = gradients(name, settings, dtype)
    # A score, or a sum of them, next to 0 makes the gradients of a row large.
    largest = again.abs().amax(-1, keepdim=True).clamp(min=1)
    close = partial(torch.testing.assert_close, atol=GRADIENT[dtype], rtol=0, equal_nan=True)
    close(written / largest, again / largest)
    assert (written[1000:1003] == 0).all()


def test_alpha_relu_off_its_support_heeds_no_gradient():
    z = torch.tensor([[1.0, -1.0, -torch.inf, torch.nan]], requires_grad=True)
    p = MAPS["alpha_relu"].function(z, alpha=1.5, tau=0.0)
    (gradient,) = torch.autograd.grad(p, z, torch.tensor([[2.0, torch.inf, torch.nan, 1.0]]))
    assert_equal = partial(torch.testing.assert_close, atol=0, rtol=0, equal_nan=True)
    assert_equal(gradient, torch.tensor([[1.0, 0.0, 0.0, torch.nan]]))


@pytest.mark.parametrize("name", ["entmax15", "sparsemax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_log_probabilities_are_those_of_the_formula(name, dtype):
    z = (scores(name, dtype)[:1000] * 3).requires_grad_()
    with torch.no_grad():
        z[5] = 2.0  # all tied
        z[6, 3] = 9 * LOG_ZERO
    p = MAPS[name].function(z)
    log_p = log_or_floor_(p, z)
    upstream = torch.randn(z.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    written = torch.autograd.grad(log_p, (p, z), upstream, retain_graph=True)
    again = torch.autograd.grad(log_p, (p, z), upstream, create_graph=True)
    for found, expected in zip(written, again):
        assert expected.requires_grad
        torch.testing.assert_close(found, expected.detach(), atol=GRADIENT[dtype], rtol=GRADIENT[dtype])


@pytest.mark.parametrize("learned", ["p", "z"])
def test_log_probabilities_of_which_one_input_has_a_gradient(learned):
    z = scores("entmax15", torch.float64)[:3]
    p, wanted = MAPS["entmax15"].function(z), (z if learned == "z" else MAPS["entmax15"].function(z)).clone()
    wanted.requires_grad_()
    log_p = log_or_floor_(wanted, z) if learned == "p" else log_or_floor_(p, wanted)
    upstream = torch.randn(z.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (written,) = torch.autograd.grad(log_p, wanted, upstream, retain_graph=True)
    (again,) = torch.autograd.grad(log_p, wanted, upstream, create_graph=True)
    torch.testing.assert_close(written, again.detach(), atol=GRADIENT[torch.float64], rtol=0)


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_weights_lie_side_by_side_as_those_of_softmax(name, settings):
    z = scores(name, torch.float32)[:4].view(2, 2, -1)
    assert MAPS[name].function(z, **settings).is_contiguous()
