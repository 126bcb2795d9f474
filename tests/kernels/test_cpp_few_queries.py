"""Attention of a few queries is that of float64, whatever is asked of it, and reads nothing that is not there."""

import shutil

import pytest
import torch

from hf_sparse.functional import entmax
from hf_sparse.kernels import Scores, attend_few
from tests.kernels.attention_cases import CASES, LEVELS, check, check_case, check_large_soft_cap
from tests.kernels.test_cpp_attention import hidden
from tests.tolerances import WEIGHT

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)


def forward(q, k, v, scores):
    return attend_few(q, k, v, hidden(scores), torch.ones(q.shape[1])), ()


def no_gradients(*_):
    return (None,) * 5


def plain(heads, alpha=1.5, scaling=1.0, **settings):
    return Scores(torch.full((heads,), alpha), 0.0, scaling, **settings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(name for name in case.values() if LEVELS[name]))
def test_outputs_are_those_of_float64(case):
    check_case(case.values(), forward, no_gradients, device="cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("key_heads", range(1, 13))
def test_queries_that_share_a_key_are_taken_together_however_many_they_are(key_heads, dtype):
    for sharing in (1, 12 // key_heads):
        check(
            forward, no_gradients, "cpu", queries=3, keys=150, heads=sharing * key_heads, key_heads=key_heads, dim=40,
            dtype=dtype, causal=True, sinks=True, alpha=None,
        )  # fmt: skip


def test_heads_have_alphas_and_temperatures_of_their_own():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 1, 16), torch.randn(2, 2, 50, 16), torch.randn(2, 2, 50, 24)
    alpha, temperature = torch.tensor([1.5, 1.5, 1.25, 2.0, 1.3, 1.3]), torch.tensor([1.0, 2.0, 2.0, 0.5, 1.0, 3.0])
    out = attend_few(q, k, v, Scores(alpha, 0.0, 1.0), temperature)
    z = q.double() @ k.double().repeat_interleave(3, 1).mT / temperature.view(-1, 1, 1)
    weights = torch.stack([entmax(z[:, h], float(alpha[h]), impl="torch") for h in range(6)], 1)
    torch.testing.assert_close(out.double(), weights @ v.double().repeat_interleave(3, 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("ratio", [0.001, 0.1, 0.25, 0.5])
def test_scores_far_below_the_soft_cap_lose_no_digits_to_it(ratio):
    check_large_soft_cap(forward, ratio, "cpu", keys=300)


def test_weights_are_normalized_and_exactly_zero_off_the_support():
    torch.manual_seed(0)
    q, k = 3 * torch.randn(1, 4, 1, 16), torch.randn(1, 4, 200, 16)
    weights = attend_few(q, k, torch.eye(200).expand(1, 4, -1, -1), plain(4), torch.ones(4))
    expected = entmax(q @ k.mT, 1.5)
    assert torch.equal(weights > 0, expected > 0)
    assert (weights == 0).any()
    rounding = 1e-6 * float((q @ k.mT).abs().max())  # of a score
    torch.testing.assert_close(weights, expected, atol=WEIGHT[torch.float32] + rounding, rtol=0)


def test_a_score_that_is_nan_or_infinite_shows_in_its_row_alone():
    q, k, v = torch.ones(1, 3, 1, 4), torch.ones(1, 3, 9, 4), torch.ones(1, 3, 9, 4)
    k[0, 0, 3, 1], k[0, 1, 2, 0] = torch.nan, torch.inf
    out = attend_few(q, k, v, plain(3), torch.ones(3))
    assert out[0, :2].isnan().all()
    torch.testing.assert_close(out[0, 2], torch.ones(1, 4), atol=WEIGHT[torch.float32], rtol=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_hidden_key_may_hold_anything(value):
    q, k, v = torch.ones(1, 2, 1, 4), torch.ones(1, 2, 9, 4), torch.ones(1, 2, 9, 4)
    k[:, :, 3], v[:, :, 3] = value, value
    mask = (torch.arange(9) != 3)[None, None, None]
    out = attend_few(q, k, v, plain(2, mask=mask), torch.ones(2))
    torch.testing.assert_close(out, torch.ones(1, 2, 1, 4), atol=WEIGHT[torch.float32], rtol=0)


def test_a_query_that_sees_nothing_has_an_output_of_zeros():
    q, k, v = torch.ones(1, 2, 2, 4), torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4)
    out = attend_few(q, k, v, plain(2, causal=True), torch.ones(2))  # the first query comes before the only key
    assert torch.equal(out, torch.tensor([0.0, 1.0])[:, None].expand(1, 2, 2, 4))
    nothing = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    assert not attend_few(q, k, v, plain(2, mask=nothing), torch.ones(2)).any()


def test_results_do_not_depend_on_the_number_of_threads():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 1, 64), torch.randn(2, 4, 4000, 64), torch.randn(2, 4, 4000, 64)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(attend_few(q, k, v, plain(4), torch.ones(4)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
