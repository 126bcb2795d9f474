"""Threshold and support of every map say what its weights say."""

import pytest
import torch

from hf_sparse.functional import MAPS, alpha_relu, csparsemax, csparsemax_threshold, entmax, support, threshold

SETTINGS = {
    "entmax": {"alpha": 1.7},
    "sparsegen_lin": {"lam": 0.4},
    "sparsegen_exp": {"lam": -2.0},
    "sparsegen_sq": {"lam": 0.3},
    "sparsegen_log": {"lam": -1.0},
    "sparsehourglass": {"q": 0.7},
    "sparsecone": {"q": 2.0},
    "alpha_relu": {"alpha": 1.5, "tau": 0.4},
}
THRESHOLDED = sorted({"entmax15", "sparsemax", *SETTINGS} - {"alpha_relu"})


def scores(name, *shape):
    z = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return z if MAPS[name].any_scores else z.abs() + 0.1


@pytest.mark.parametrize("length", [9, 1500])
@pytest.mark.parametrize("name", sorted(name for name, known in MAPS.items() if known.bounds is None))
def test_support_is_the_ragged_form_of_the_weights(name, length):
    z = scores(name, 2, 3, length)
    p = MAPS[name].function(z, **SETTINGS.get(name, {})).view(-1, length)
    indices, values, offsets = support(z, name, **SETTINGS.get(name, {}))
    assert offsets.tolist() == [0, *(p != 0).sum(-1).cumsum(0).tolist()]
    assert indices.tolist() == (p != 0).nonzero()[:, 1].tolist()
    torch.testing.assert_close(values, p[p != 0], atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("name", ["softmax", "entmax15", "softpick", "alpha_relu"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_supports_of_half_precision_are_found_in_float32(name, dtype):
    z, settings = torch.tensor([[9.0, -9.0, 1.5, 2.0]], dtype=dtype), SETTINGS.get(name, {})
    expected, found = (support(each, name, **settings) for each in (z.float(), z))
    assert found.values.dtype == torch.float32
    assert all(map(torch.equal, found, expected))


def test_scores_of_another_type_are_refused_before_their_values_are_read():
    for z in (torch.ones(3, dtype=torch.complex64), torch.tensor([0, 1])):
        with pytest.raises(TypeError, match="scores must be a floating-point tensor"):
            MAPS["sparsegen_log"].function(z)


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("name", THRESHOLDED)
def test_no_weight_below_the_threshold_and_every_weight_above_it(name, dim):
    z = scores(name, 6, 6)
    settings = SETTINGS.get(name, {})
    p = MAPS[name].function(z, dim=dim, **settings)
    tau = threshold(z, name, dim, **settings)
    assert tau.shape == ((1, 6) if dim == 0 else (6, 1))
    # Maps and thresholds share the scores x: recover them from the weights, and compare the differences.
    alpha = {"entmax15": 1.5, "entmax": 1.7}.get(name, 2.0)
    lam, q = settings.get("lam", 0.0), settings.get("q", 0.0)
    total = z.sum(dim, keepdim=True)
    x = {
        "sparsegen_lin": z / (1 - lam),
        "sparsegen_exp": z.exp() / (1 - lam),
        "sparsegen_sq": z**2 / (1 - lam),
        "sparsegen_log": z.abs().log() / (1 - lam),
        "sparsehourglass": z * (1 + 6 * q) / (total.abs() + 6 * q),
        "sparsecone": z * (1 + 6 * q) / (total + 6 * q),
    }.get(name, z)
    expected = ((alpha - 1) * x - tau).clamp(min=0) ** (1 / (alpha - 1))
    torch.testing.assert_close(p, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["softmax", "alpha_relu", "spherical_softmax"])
def test_maps_without_threshold_say_so(name):
    with pytest.raises(ValueError, match=r"softmax has neither a threshold|solves for no threshold"):
        threshold(torch.zeros(3), name)


def test_settings_are_the_maps_own():
    z = scores("entmax", 4, 7)
    assert threshold(z, "entmax").tolist() == threshold(z, "entmax15").tolist()
    with pytest.raises(ValueError, match=r"lam must be a number from -1000000000 to 0.999999"):
        threshold(z, "sparsegen_lin", lam=1.0)
    for function in (threshold, support):
        with pytest.raises(ValueError, match="sparsemax takes no setting 'alpha'; it takes none"):
            function(z, "sparsemax", alpha=1.5)
        with pytest.raises(ValueError, match="entmax takes no setting 'lam'; it takes 'alpha'"):
            function(z, "entmax", lam=0.5)
    assert len(support(z, "alpha_relu", alpha=1.5, tau=0.0).indices) == int((alpha_relu(z, 1.5, 0.0) > 0).sum())
    assert len(support(z, "entmax", alpha=1.2).indices) == int((entmax(z, 1.2) > 0).sum())


@pytest.mark.parametrize("function", [threshold, support])
def test_a_setting_for_each_row_is_refused(function):
    with pytest.raises(TypeError, match=r"alpha must be a number from 1 to 64, was tensor\(\[\[1.5"):
        function(torch.zeros(2, 3), "entmax", alpha=torch.full((2, 1), 1.5))


def test_names_are_texts():
    with pytest.raises(ValueError, match=r"unknown sparse map \['entmax'\]; choose one of"):
        threshold(torch.zeros(2, 3), ["entmax"])


@pytest.mark.parametrize("dim", [0, -1])
def test_bounded_weights_are_clipped_at_their_threshold(dim):
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(40, 40, generator=generator, dtype=torch.float64)
    for most in (0.03, 0.1, 0.4, 3.0):
        u = most * torch.rand(40, 40, generator=generator, dtype=torch.float64) + 0.02
        tau = csparsemax_threshold(z, u, dim)
        p = csparsemax(z, u, dim)
        torch.testing.assert_close(torch.minimum((z - tau).clamp(min=0), u), p, atol=1e-12, rtol=0)
    exact = torch.full(
        (5,), 0.2, dtype=torch.float64
    )  # every entry at its bound: any threshold up to min z - u will do
    assert float(csparsemax_threshold(z[0, :5], exact)) == float((z[0, :5] - exact).min())


def test_the_threshold_under_bounds_has_the_right_gradient():
    generator = torch.Generator().manual_seed(4)
    z = torch.randn(3, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    u = (0.3 + 0.2 * torch.rand(3, 6, generator=generator, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(csparsemax_threshold, (z, u))
    for bad in ((z, 1.0), ([1.0], u)):
        with pytest.raises(TypeError, match="must be a floating-point tensor"):
            csparsemax_threshold(*bad)


def test_the_support_of_bounded_maps_takes_their_bounds():
    z, u = torch.tensor([[1.2, 0.8, -0.2]]), torch.tensor([[0.5, 1.0, 1.0]])
    assert support(z, "csparsemax", u=u).indices.tolist() == [0, 1]
