import pytest
import torch

from hf_sparse.functional import entmax, newton
from hf_sparse.functional.newton import exponent_of, power, solve, solve_, solve_with_powers
from tests.tolerances import WEIGHT


def clusters():
    """Entries whose counts and distances grow in geometric progression: each Newton step drops few of them."""
    values = torch.tensor([-(1.2 ** (k - 15)) for k in range(16)])
    x = torch.cat([value.expand(2 ** (k + 1)) for k, value in enumerate(values)])[None]
    return x - x.max()


@pytest.mark.parametrize("exponent", [1.0, 1.25, 2.0, 3.0, 7.5])
def test_the_fixed_number_of_steps_reaches_what_the_stopping_test_reaches(exponent):
    u = (clusters() + 1).clamp(min=0)
    fixed, tested = solve(u, exponent), solve_(u.clone(), exponent)
    for solved in (fixed, tested):
        assert abs(float((solved.double() ** exponent).sum()) - 1) < 1e-4
    torch.testing.assert_close(fixed, tested, atol=1e-6, rtol=0)


@pytest.mark.parametrize("start", [-1.0, -0.9, -0.75])
def test_any_lower_bound_will_do_to_start_from(start):
    x = torch.tensor([[0.0, -0.1, -0.5]], dtype=torch.float64)
    expected = solve_((x + 1).clamp(min=0), 2.0)
    torch.testing.assert_close(solve_((x - start).clamp(min=0), 2.0), expected, atol=1e-12, rtol=0)


def test_masked_rows_stay_zero_and_nan_rows_stay_alone():
    u = torch.tensor([[0.0, 0.0], [torch.nan, 1.0], [1.0, 1.0]])
    solve_(u, 2.0)
    assert u[0].tolist() == [0, 0]
    assert bool(u[1].isnan().all())
    torch.testing.assert_close(u[2].square(), torch.tensor([0.5, 0.5]))


def test_exponents_that_rounding_keeps_from_being_whole_are_whole():
    assert exponent_of(4 / 3) == 3.0
    assert exponent_of(1.4) == 2.5
    assert exponent_of(1.3) == 1 / (1.3 - 1)
    u = torch.tensor([0.3, 1.7])
    for exponent in (1.0, 2.0, 3.0, 4.0, 2.5):
        torch.testing.assert_close(power(u, exponent), u**exponent)


@pytest.mark.parametrize("exponent", [5.0, 6.0, 7.0, 9.0, 10.0, 16.0, 31.0, 32.0, 33.0, 40.0])
def test_whole_powers_are_those_of_float64_down_to_numbers_that_are_lost(exponent):
    u = torch.cat([torch.logspace(-30, 0.3, 500), torch.tensor([0.0, 1e-42, 1.0])])
    given = u.clone()
    found, expected = power(u, exponent), u.double() ** exponent
    torch.testing.assert_close(found.double(), expected, atol=2.0**-100, rtol=2e-6 * exponent)
    assert torch.equal(found > 2.0**-99, expected > 2.0**-99)
    assert torch.equal(u, given)
    assert bool(power(torch.tensor(torch.nan), exponent).isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("exponent", [0.25, 0.5, 0.75, 1.25, 1.5, 1.75, 2.5, 3.75])
def test_powers_by_roots_are_those_of_float64(exponent, dtype, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "log2_", None, raising=False)
    u = torch.logspace(-30, 0.3, 500, dtype=dtype)
    given = u.clone()
    found = power(u, exponent)
    torch.testing.assert_close(found.double(), u.double() ** exponent, atol=1e-38, rtol=8 * torch.finfo(dtype).eps)
    assert torch.equal(u, given)
    assert power(torch.zeros(3, dtype=dtype), exponent).tolist() == [0, 0, 0]
    assert bool(power(torch.tensor(torch.nan, dtype=dtype), exponent).isnan())
    assert exponent < 1 or float(power(torch.tensor(torch.inf, dtype=dtype), exponent)) == torch.inf


@pytest.mark.parametrize("heavy", ["anywhere", "one in sixteen", "two in sixteen", "everywhere", "masked"])
@pytest.mark.parametrize(("exponent", "length"), [(4 / 3, 1 << 14), (10 / 3, 1 << 14), (2.0, 1 << 14), (10 / 3, 4096)])
def test_long_rows_have_their_threshold_wherever_their_mass_is(exponent, length, heavy):
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(3, length, generator=generator, dtype=torch.float64) * 0.2
    if heavy == "anywhere":
        u[:, torch.randperm(length, generator=generator)[:40]] += 0.8
    elif heavy == "one in sixteen":
        u[:, ::16] += 0.8
    elif heavy == "two in sixteen":
        u[:, 1::8] += 0.8
    else:
        u += 0.8
    if heavy == "masked":
        u[1] = 0
    expected = solve_(u.clone(), exponent)
    solved, powers = solve_with_powers(u, exponent)
    torch.testing.assert_close(solved, expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(powers, expected**exponent, atol=WEIGHT[u.dtype], rtol=0)


@pytest.mark.parametrize("exponent", [1.0, 1.001, 10 / 9, 4 / 3, 5 / 3, 2.0, 2.4, 10 / 3, 5.0, 8.7, 15.5, 20.5])
@pytest.mark.parametrize("scale", [0.01, 0.5, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_that_come_with_the_threshold_are_those_of_float64(dtype, scale, exponent):
    if dtype == torch.float32:
        exponent = min(exponent, 9.0)  # larger ones multiply the rounding of u
    x = torch.randn(200, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * scale
    x[::2] = x[::2].round()  # ties
    u = ((x - x.amax(-1, keepdim=True)) / exponent + 1).clamp(min=0)
    expected = solve_(u.clone(), exponent)
    solved, powers = solve_with_powers(u.to(dtype), exponent)
    torch.testing.assert_close(powers.double(), expected**exponent, atol=WEIGHT[dtype], rtol=0)
    assert torch.equal(powers > 0, (solved > 0) & (solved.double() ** exponent > torch.finfo(dtype).tiny))
    assert abs(float(powers.double().sum(-1).max()) - 1) < 2e-6


@pytest.mark.parametrize("exponent", [10 / 9, 4 / 3, 10 / 3, 8.7])
def test_powers_of_rows_of_one_entry_masked_rows_and_rows_with_nan(exponent):
    u = torch.zeros(4, 50)
    u[0, 3] = 1
    u[1, 7] = torch.nan
    u[3] = 1
    solved, powers = solve_with_powers(u.clone(), exponent)
    assert torch.equal(solved[0], u[0])  # to the last bit, so that its loss is zero
    assert torch.equal(powers[0], u[0])
    assert bool(powers[1].isnan().all())
    assert not bool(powers[2].any())
    torch.testing.assert_close(powers[3], torch.full((50,), 0.02), atol=WEIGHT[u.dtype], rtol=0)


@pytest.mark.parametrize("alpha", [1.3, 1.6, 1.75, 1.9])
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_maps_take_few_powers_that_need_a_logarithm(alpha, scale, monkeypatch):
    counted = []
    monkeypatch.setattr(newton, "power", lambda *given: counted.append(given) or power(*given))
    entmax(torch.randn(200, 300, generator=torch.Generator().manual_seed(0)) * scale, alpha, impl="torch")
    assert len(counted) <= 3
