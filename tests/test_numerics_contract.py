"""The numerics contract of maps and losses, one line a test."""

import pytest
import torch

import hf_sparse.functional as F
from hf_sparse.functional import MAPS, entmax
from hf_sparse.functional._entmax_rows import EntmaxRows
from hf_sparse.losses import alpha_relu_loss, entmax15_loss, entmax_loss, fenchel_young_loss, sparsemax_loss
from tests.reference import entmax_by_bisection
from tests.tolerances import MASS, WEIGHT

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
# Scores are positive here, so that the maps with a smaller domain take part.
EVERY_MAP = pytest.mark.parametrize("name", sorted(MAPS))
FAMILY = pytest.mark.parametrize("alpha", [1.0, 1.2, 1.5, 2.0])
LENGTHS = pytest.mark.parametrize("length", [9, 1500], ids=["short", "long"])
LOSSES = {
    "softmax": lambda z, y, **options: fenchel_young_loss(z, y, "softmax", **options),
    "entmax15": entmax15_loss,
    "sparsemax": sparsemax_loss,
    "entmax": lambda z, y, **options: entmax_loss(z, y, alpha=1.3, **options),
    "alpha_relu": lambda z, y, **options: alpha_relu_loss(z, y, alpha=1.5, tau=0.3, **options),
}
EVERY_LOSS = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def scores(*shape, dtype=torch.float64, seed=0, scale=3.0):
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale + 0.1).to(
        dtype
    )


def apply(name, z, dim=-1):
    settings = {"tau": 0.2} if name == "alpha_relu" else {}
    if name == "alpha_relu":
        settings["alpha"] = 1.5
    if MAPS[name].bounds is not None:
        settings["u"] = torch.tensor(0.5, dtype=z.dtype, device=z.device)
    return MAPS[name].function(z, dim=dim, **settings)


@EVERY_MAP
@LENGTHS
def test_a_fully_masked_row_gets_zero_weights_and_zero_gradient_and_others_do_not_notice(name, length):
    z = scores(3, length)
    z[1] = -torch.inf
    z.requires_grad_()
    p = apply(name, z)
    assert bool((p[1] == 0).all())
    torch.testing.assert_close(p[[0, 2]], apply(name, z[[0, 2]]), atol=1e-12, rtol=0)
    (p * scores(length, seed=1)).sum().backward()
    assert bool((z.grad[1] == 0).all())
    assert bool(z.grad.isfinite().all())


@EVERY_MAP
@HALF
def test_half_precision_scores_are_mapped_in_float32(name, dtype):
    z = scores(4, 50, dtype=dtype)
    assert apply(name, z).dtype == dtype
    torch.testing.assert_close(apply(name, z), apply(name, z.float()).to(dtype), atol=0, rtol=0)


@FAMILY
@LENGTHS
@pytest.mark.parametrize("offset", [1e2, -1e6, 1e8])
def test_offsets_do_not_change_the_weights(alpha, length, offset):
    # Multiples of 8 are float32 numbers up to 1e8: the offset itself loses nothing.
    z = torch.randint(-3, 3, (4, length), generator=torch.Generator().manual_seed(0)).float() * 8
    z[:, 1] = z[:, 0]
    torch.testing.assert_close(entmax(z + offset, alpha), entmax(z, alpha), atol=0, rtol=0)


# Not alpha = 1, where the weights are torch.softmax's own.
@pytest.mark.parametrize("alpha", [1.05, 1.2, 1.5, 2.0])
@pytest.mark.parametrize("scale", [1e-5, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("length", [1, 2, 64, 1500, 32_000])
def test_every_row_has_mass_one(alpha, scale, length):
    z = torch.randn(3, length, generator=torch.Generator().manual_seed(0)) * scale
    mass = entmax(z, alpha).double().sum(-1)
    torch.testing.assert_close(mass, torch.ones_like(mass), atol=MASS[torch.float32], rtol=0)


@pytest.mark.parametrize(("length", "bound"), [(64, 1e-6), (4096, 1e-6), (32_000, 1e-4), (262_144, 1e-4)])
@pytest.mark.parametrize("scale", [0.0, 1e-5, 1e-2, 1.0, 30.0])
def test_rows_of_softmax_have_the_mass_that_torch_gives_them(scale, length, bound):
    z = torch.randn(3, length, generator=torch.Generator().manual_seed(0)) * scale
    p = entmax(z, 1.0)
    torch.testing.assert_close(p, torch.softmax(z, -1), atol=0, rtol=0)
    mass = p.double().sum(-1)
    torch.testing.assert_close(mass, torch.ones_like(mass), atol=bound, rtol=0)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_bfloat16_rows_of_a_vocabulary_lose_mass_to_the_cast_alone(alpha, scale):
    # Rounding each weight to 8 bits moves the mass of a row by at most 2^-9 of it: the solver adds nothing to that.
    z = (torch.randn(4, 32_000, generator=torch.Generator().manual_seed(0)) * scale).bfloat16()
    mass = entmax(z, alpha).double().sum(-1)
    torch.testing.assert_close(mass, torch.ones_like(mass), atol=2**-9 + 1e-6, rtol=0)


@EVERY_MAP
def test_first_and_second_derivatives(name):
    z = scores(2, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: apply(name, z), z)
    assert torch.autograd.gradgradcheck(lambda z: apply(name, z), z)


@EVERY_LOSS
def test_first_and_second_derivatives_of_losses(loss):
    z, y = scores(3, 5).requires_grad_(), torch.tensor([0, 4, 2])
    assert torch.autograd.gradcheck(lambda z: loss(z, y), z)
    assert torch.autograd.gradgradcheck(lambda z: loss(z, y), z)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_value_and_alpha_derivative_are_continuous_at_softmax(dtype):
    z = scores(4, 8, dtype=dtype)
    softmax, slope = torch.softmax(z, -1), None
    for distance in (0.0, 1e-8, 1e-5, 1e-3):
        alpha = torch.tensor(1 + distance, dtype=dtype, requires_grad=True)
        for given in (alpha, 1 + distance):
            torch.testing.assert_close(entmax(z, given), softmax, atol=2 * distance + 1e-6, rtol=0)
        (gradient,) = torch.autograd.grad((entmax(z, alpha) * scores(8, dtype=dtype, seed=1)).sum(), alpha)
        slope = gradient if slope is None else slope
        torch.testing.assert_close(gradient, slope, atol=10 * distance + 1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("length", [8, 1500], ids=["short", "long"])
@pytest.mark.parametrize("soft", [False, True], ids=["classes", "distributions"])
def test_losses_and_their_gradients_are_continuous_at_softmax(dtype, length, soft):
    z = scores(4, length, dtype=dtype).requires_grad_()
    y = torch.softmax(scores(4, length, dtype=dtype, seed=1), -1) if soft else torch.tensor([0, 1, 2, 3])
    expected = fenchel_young_loss(z, y, "softmax")
    (slope,) = torch.autograd.grad(expected, z)
    in_alpha = None
    for distance in (0.0, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3):
        alpha = torch.tensor(1 + distance, dtype=dtype, requires_grad=True)
        for given in (alpha, 1 + distance):
            loss = entmax_loss(z, y, alpha=given)
            torch.testing.assert_close(loss, expected, atol=50 * distance + 2e-6, rtol=0)
            (gradient,) = torch.autograd.grad(loss, z, retain_graph=True)
            torch.testing.assert_close(gradient, slope, atol=distance + 1e-6, rtol=0)
            if given is alpha:
                (found,) = torch.autograd.grad(loss, alpha)
                in_alpha = found if in_alpha is None else in_alpha
                torch.testing.assert_close(found, in_alpha, atol=100 * distance + 1e-4, rtol=20 * distance + 1e-5)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_the_shortcut_for_long_rows_equals_the_full_path(alpha, scale):
    z = torch.randn(4, 3000, generator=torch.Generator().manual_seed(0)).mul(scale).requires_grad_()
    upstream = torch.randn(4, 3000, generator=torch.Generator().manual_seed(1))
    short, full = entmax(z, alpha), EntmaxRows.call(z, alpha, "torch")
    torch.testing.assert_close(short, full, atol=WEIGHT[torch.float32], rtol=0)
    for ours, theirs in zip(torch.autograd.grad(short, z, upstream), torch.autograd.grad(full, z, upstream)):
        torch.testing.assert_close(ours, theirs, atol=5e-6, rtol=0)


@EVERY_MAP
@LENGTHS
def test_ties_share_alike_and_equal_scores_are_uniform(name, length):
    p = apply(name, torch.full((2, length), 0.7, dtype=torch.float64))
    # torch's own functions round the last entries of a row otherwise than whole vectors of them.
    rounding = 4 * torch.finfo(p.dtype).eps if MAPS[name].elementwise else 0.0
    assert bool(((p - p[0, 0]).abs() <= rounding * p).all())
    if MAPS[name].normalized:
        torch.testing.assert_close(p.sum(-1), torch.ones(2, dtype=torch.float64), atol=1e-10, rtol=0)
    z = scores(length)
    z[0] = z[2]
    assert float(apply(name, z)[0]) == float(apply(name, z)[2])


@FAMILY
@pytest.mark.parametrize("length", [1, 5, 1500])
def test_one_entry_far_ahead_takes_all(alpha, length):
    z = torch.zeros(length)
    z[-1] = 200.0
    assert entmax(z, alpha).tolist() == [*[0.0] * (length - 1), 1.0]


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("size", [1, 2, 40, 2000])
def test_supports_of_size_one_two_many_and_all(alpha, size):
    z = torch.full((2000,), -100.0)
    z[torch.randperm(2000, generator=torch.Generator().manual_seed(0))[:size]] = torch.linspace(0, 1e-4, size)
    p = entmax(z, alpha)
    assert int((p > 0).sum()) == size
    torch.testing.assert_close(p.double(), entmax_by_bisection(z, alpha), atol=WEIGHT[torch.float32], rtol=0)


@EVERY_MAP
@LENGTHS
def test_permuting_scores_permutes_weights(name, length):
    z, order = scores(2, length), torch.randperm(length, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(apply(name, z[:, order]), apply(name, z)[:, order], atol=1e-12, rtol=0)


@EVERY_MAP
def test_any_axis_any_number_of_leading_dimensions_and_no_rows_at_all(name):
    z = scores(2, 3, 4, 5)
    rows = apply(name, z.reshape(-1, 5)).view(2, 3, 4, 5)
    torch.testing.assert_close(apply(name, z), rows, atol=1e-14, rtol=0)
    for dim in (0, -2, 2):
        torch.testing.assert_close(
            apply(name, z, dim), apply(name, z.movedim(dim, -1)).movedim(-1, dim), atol=1e-14, rtol=0
        )
    assert apply(name, z[:0]).shape == (0, 3, 4, 5)
    assert apply(name, z[0, 0, 0]).shape == (5,)


@EVERY_MAP
def test_flags_of_the_record_are_true(name):
    sparse_map = MAPS[name]
    z = scores(3, 6, scale=0.5) - (0.2 if sparse_map.any_scores else 0.0)
    mass = apply(name, z).sum(-1)
    assert torch.allclose(mass, torch.ones_like(mass)) == sparse_map.normalized
    assert torch.allclose(apply(name, z + 0.5), apply(name, z)) == sparse_map.shift_invariant
    moved = torch.cat([z[:, :1] + 0.1, z[:, 1:]], -1)
    assert torch.equal(apply(name, moved)[:, 1:], apply(name, z)[:, 1:]) == sparse_map.elementwise


@EVERY_LOSS
def test_ignored_targets_count_for_nothing_and_all_ignored_is_zero(loss):
    z = scores(3, 6).requires_grad_()
    y = torch.tensor([1, -100, 4])
    torch.testing.assert_close(loss(z, y), loss(z[[0, 2]], y[[0, 2]]))
    total = loss(z, torch.full((3,), -100))
    assert float(total.detach()) == 0
    total.backward()
    assert bool((z.grad == 0).all())


@EVERY_MAP
@LENGTHS
def test_nan_stays_in_its_row(name, length):
    z = scores(3, length)
    z[1, 2] = torch.nan
    z.requires_grad_()
    p = apply(name, z)
    assert bool(p[1].isnan().any())
    torch.testing.assert_close(p[[0, 2]], apply(name, z[[0, 2]]), atol=1e-12, rtol=0)
    p[[0, 2]].mul(scores(length, seed=1)).sum().backward()
    assert bool(z.grad[[0, 2]].isfinite().all())


@EVERY_LOSS
def test_nan_in_one_row_of_logits_leaves_the_gradient_of_the_others(loss):
    z, y = scores(3, 6), torch.tensor([0, 1, 2])
    clean = z.clone().requires_grad_()
    loss(clean, y, reduction="none").sum().backward()
    z[1, 2] = torch.nan
    z.requires_grad_()
    loss(z, y, reduction="none").sum().backward()
    torch.testing.assert_close(z.grad[[0, 2]], clean.grad[[0, 2]])
    assert bool(loss(z, y, reduction="none").detach().isnan()[1])


def test_what_the_package_exports_it_has():
    for name in F.__all__:
        assert hasattr(F, name)
