"""Settings at the ends of their ranges give finite results; beyond, they are refused with the range."""

import re

import pytest
import torch

from hf_sparse.config import MapConfig
from hf_sparse.config.settings import BY_LENGTH, ON_SCORES
from hf_sparse.functional import MAPS
from hf_sparse.losses import fenchel_young_loss, linear_alpha_relu_loss, linear_entmax_loss

NUMBERS = [
    (name, key, setting)
    for name, known in sorted(MAPS.items())
    for key, setting in (known.settings | ON_SCORES).items()
    if setting.holds is not None
]
IDS = [f"{name}-{key}" for name, key, _ in NUMBERS]
EVERY_NUMBER = pytest.mark.parametrize(("name", "key", "setting"), NUMBERS, ids=IDS)


def ends(setting):
    """The two ends of a range, as its words have them."""
    low, high = re.fullmatch(r"a number from (\S+) to (\S+)", setting.allowed).groups()
    return float(low), float(high)


@EVERY_NUMBER
def test_beyond_its_range_a_setting_is_refused_with_the_range(name, key, setting):
    low, high = ends(setting)
    margin = 1e-9 * max(1.0, abs(low), abs(high))
    for value in (low - margin, high + margin, -1e308, 1e308, float("nan"), float("inf"), 1e-300, 1 + 1e-12):
        if low <= value <= high:
            continue
        with pytest.raises(ValueError, match=re.escape(f"{key} must be {setting.allowed}")):
            setting.check(key, value)


# Overflowing scores, or scores that are all 0, as the maps say.
UNDEFINED = {
    *(("sparsegen_exp", key, end) for key, end in (("temperature", 1e-4), ("delta", 1e6), ("beta", 1e6))),
    *((name, "delta", 0.0) for name in ("sparsegen_log", "spherical_softmax", "sum_normalization")),
    ("sum_normalization_pp", "delta", 0.0),
}


@EVERY_NUMBER
def test_at_the_ends_of_its_range_weights_and_gradients_are_finite(name, key, setting):
    if MAPS[name].bounds is not None and key not in ON_SCORES:
        pytest.skip("a setting of the credit, not of the map")
    given = {"tau": 0.1} if name == "alpha_relu" else {}
    z = torch.rand(3, 7, generator=torch.Generator().manual_seed(0)).mul(20).add(0.1).requires_grad_()
    for value in ends(setting):
        attention = key in BY_LENGTH
        if (name, key, value) in UNDEFINED:
            continue
        role = "attn" if attention else "head"
        config = MapConfig.parse({"name": name, **given, key: value}, role)
        if MAPS[name].bounds is not None:
            p = MAPS[name].function(config.scores(z), torch.full((7,), 0.5))
        else:
            p = config(z)
        assert bool(p.isfinite().all())
        (gradient,) = torch.autograd.grad(p.square().sum(), z)
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("alpha", [1.0, 1 + 1e-12, 1 + 1e-7, 1.0001, 64.0])
def test_losses_at_the_ends_of_alpha_are_finite_and_next_to_softmax_where_alpha_is(alpha):
    z = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).mul(5).requires_grad_()
    y = torch.tensor([0, 1, 2, 3])
    loss = fenchel_young_loss(z, y, "entmax", alpha=alpha)
    (gradient,) = torch.autograd.grad(loss, z)
    assert bool(gradient.isfinite().all())
    if alpha < 1.01:
        expected = torch.nn.functional.cross_entropy(z, y)
        torch.testing.assert_close(loss, expected, atol=1e-5 + 30 * (alpha - 1), rtol=0)


@pytest.mark.parametrize("alpha", [1.001, 1.02, 1.3, 2.5, 5.0])
@pytest.mark.parametrize("length", [20, 3000])
@pytest.mark.parametrize("impl", ["torch", "auto"])
def test_alpha_relu_is_as_good_in_float32_as_in_float64_for_every_alpha(alpha, length, impl):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(4, 8, generator=generator), torch.randn(length, 8, generator=generator)
    y, z = torch.tensor([0, 1, 2, 3]), hidden @ weight.t()
    # About one class of weight one, and a few below.
    tau = float((alpha - 1) * z.max() - 1)
    loss = lambda x: fenchel_young_loss(x, y, "alpha_relu", alpha=alpha, tau=tau, reduction="sum", impl=impl)  # noqa: E731
    found, exact = z.clone().requires_grad_(), z.double().requires_grad_()
    torch.testing.assert_close(loss(found).double(), loss(exact), atol=1e-6, rtol=1e-6)
    (of_found,), (of_exact,) = torch.autograd.grad(loss(found), found), torch.autograd.grad(loss(exact), exact)
    torch.testing.assert_close(of_found.double(), of_exact, atol=1e-6, rtol=1e-6)
    fused = linear_alpha_relu_loss(hidden, weight, y, alpha=alpha, tau=tau, reduction="sum", impl=impl)
    torch.testing.assert_close(fused.double(), loss(exact), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("option", [{"softcap": 1e-300}, {"softcap": 1e7}, {"scale": 1e300}, {"scale": -1e300}])
def test_options_of_fused_losses_have_ranges(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} must be a number from"):
        linear_entmax_loss(torch.ones(1, 2), torch.ones(4, 2), torch.tensor([0]), **option)


@pytest.mark.parametrize("option", [{"softcap": 1e-4}, {"softcap": 1e6}, {"scale": 1e6}, {"scale": -1e6}])
def test_options_of_fused_losses_are_finite_at_the_ends(option):
    hidden = torch.ones(1, 2, requires_grad=True)
    loss = linear_entmax_loss(hidden, torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0]), **option)
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(hidden.grad.isfinite().all())
