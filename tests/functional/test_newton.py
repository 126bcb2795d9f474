import pytest
import torch

from hf_sparse.functional.newton import exponent_of, power, solve, solve_, solve_crowded


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


@pytest.mark.parametrize("heavy", ["anywhere", "sampled alone", "never sampled", "everywhere", "masked"])
@pytest.mark.parametrize(("exponent", "length"), [(4 / 3, 1 << 14), (10 / 3, 1 << 14), (2.0, 1 << 14), (10 / 3, 4096)])
def test_crowded_rows_have_their_threshold_whatever_the_sample_says(exponent, length, heavy):
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(3, length, generator=generator, dtype=torch.float64) * 0.2
    if heavy == "anywhere":
        u[:, torch.randperm(length, generator=generator)[:40]] += 0.8
    elif heavy == "sampled alone":
        u[:, ::16] += 0.8
    elif heavy == "never sampled":
        u[:, 1::16] += 0.8
    else:
        u += 0.8
    if heavy == "masked":
        u[1] = 0
    expected = solve_(u.clone(), exponent)
    torch.testing.assert_close(solve_crowded(u, exponent), expected, atol=1e-9, rtol=0)
