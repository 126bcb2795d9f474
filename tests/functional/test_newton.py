import pytest
import torch

from hf_sparse.functional.newton import exponent_of, power, solve, solve_


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
