"""Flash entmax is softcap, bias, mask, map and product one after the other: outputs and gradients against float64."""

import json
from pathlib import Path

import pytest
import torch

from tests.kernels import attention_cases
from tests.kernels.attention_cases import CASES, FACTORS, LEVELS
from tests.kernels.covering import pairs
from tests.kernels.devices import DEVICE, INTERPRETED, needs_triton

pytest.importorskip("triton")

from hf_sparse.kernels.gpu import attention
from hf_sparse.kernels.gpu.attention import Tiles, attention_backward, attention_forward
from hf_sparse.kernels.gpu.scores import Scores

pytestmark = needs_triton
# Small, so that short sequences have several.
TILES = Tiles(16, 16)


def check_case(levels, kernels=attention):
    """The errors of one case, as a module of kernels computes it."""

    def forward(q, k, v, scores):
        out, *saved = kernels.attention_forward(q, k, v, scores, TILES)
        return out, saved

    def backward(dout, q, k, v, saved, scores, learned):
        return kernels.attention_backward(dout, q, k, v, *saved, scores, learned, TILES)

    return attention_cases.check_case(levels, forward, backward)


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(name for name in case.values() if LEVELS[name]))
def test_outputs_and_gradients_are_those_of_float64(case):
    check_case(case.values())


@pytest.mark.parametrize("ratio", [0.001, 0.25, 0.5])
def test_scores_far_below_the_soft_cap_lose_no_digits_to_it(ratio):
    def forward(q, k, v, scores):
        out, *saved = attention_forward(q, k, v, scores, TILES)
        return out, saved

    attention_cases.check_large_soft_cap(forward, ratio)


def test_any_two_levels_meet_in_a_case():
    met = set().union(*(pairs(case.items()) for case in CASES))
    wanted = pairs((factor, level) for factor, levels in FACTORS.items() for level in levels)
    assert met == {pair for pair in wanted if len(dict(pair)) == 2}


def test_the_documented_levels_are_the_tested_ones():
    documented = json.loads((Path(__file__).parents[2] / "docs" / "gpu.json").read_text())
    assert documented["cases"].keys() - {"bfloat16"} == LEVELS.keys() - {"bfloat16"}


def test_tiles_without_support_are_passed_over():
    """Queries that look only at their own tile: live tiles lie on the diagonal, and the result is exact."""
    q = torch.eye(16, device=DEVICE).repeat_interleave(16, 0)[None, None, :64] * 30
    scores = Scores(torch.tensor([1.5], device=DEVICE), 2, 1.0)
    v = torch.arange(64.0, device=DEVICE)[:, None].expand(64, 16)[None, None]
    out, _, live = attention_forward(q, q.clone(), v, scores, TILES)
    assert torch.equal(live[0, 0], torch.eye(4, dtype=torch.int8, device=DEVICE))
    expected = v.unflatten(2, (4, 16)).mean(3, keepdim=True).expand(1, 1, 4, 16, 16).flatten(2, 3)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)


def test_weights_are_normalized_to_the_last_bit_of_float32():
    q, k = torch.randn(2, 1, 2, 40, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    ones = torch.ones_like(k)
    for alpha, exponent in ((1.5, 2), (1.1, 0)):
        scores = Scores(torch.tensor([alpha, alpha], device=DEVICE), exponent, 1.0, causal=True)
        out, _, _ = attention_forward(q, k, ones, scores, TILES)
        torch.testing.assert_close(out, ones, atol=5e-7, rtol=0)


def test_a_score_that_is_nan_or_infinite_shows_in_its_rows_alone():
    """On a GPU maxima pass over NaN, unless told not to: tests/kernels/ahead_of_time.py looks for that."""
    q, k, v = torch.randn(3, 1, 1, 40, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    scores = Scores(torch.tensor([1.5], device=DEVICE), 2, 1.0, causal=True)
    expected, _, _ = attention_forward(q, k, v, scores, TILES)
    q[..., 5, 0], q[..., 7, :], k[..., 30, 2] = torch.nan, 3e38, torch.nan
    out, _, _ = attention_forward(q, k, v, scores, TILES)
    strange = torch.tensor([5, 7, *range(30, 40)])
    assert bool(out[0, 0, strange].isnan().all())
    rest = torch.ones(40, dtype=torch.bool).index_fill(0, strange, False)
    assert torch.equal(out[0, 0, rest], expected[0, 0, rest])


@pytest.mark.skipif(not INTERPRETED, reason="four gigabytes, of a file that has none")
@pytest.mark.parametrize("far", [1, 2], ids=["heads", "keys"])
def test_places_beyond_two_to_the_31_are_found(far, tmp_path):
    step, count = 2**30, 3
    sparse = torch.from_file(str(tmp_path / "memory"), shared=True, size=step * (count - 1) + 256, dtype=torch.float16)
    shape = (1, count, 4, 16) if far == 1 else (1, 1, count, 16)
    x = sparse.as_strided(shape, (0, step, 16, 1) if far == 1 else (0, 0, step, 1))
    x.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    near = x.clone(memory_format=torch.contiguous_format)
    scores = Scores(torch.full((shape[1],), 1.5), 2, 1.0)
    results = []
    for tensor in (x, near):
        out, tau, live = attention_forward(tensor, tensor, tensor, scores, TILES)
        found = attention_backward(tensor, tensor, tensor, tensor, tau, live, scores, tiles=TILES)
        results.append((out, *found[:3]))
    assert all(torch.equal(*pair) for pair in zip(*results))


@pytest.mark.skipif(not INTERPRETED, reason="four gigabytes, of a file that has none")
def test_a_bias_may_have_more_than_two_to_the_31_entries(tmp_path):
    step, heads = 2**30, 3
    sparse = torch.from_file(str(tmp_path / "memory"), shared=True, size=step * (heads - 1) + 256, dtype=torch.float16)
    bias = sparse.as_strided((1, heads, 4, 16), (0, step, 16, 1))
    bias.copy_(torch.randn(bias.shape, generator=torch.Generator().manual_seed(0)))
    q, k, v = (torch.ones(1, heads, length, 16) for length in (4, 16, 16))
    v = v * torch.arange(16.0)[:, None]
    far, near = (Scores(torch.full((heads,), 1.5), 2, 1.0, bias=b) for b in (bias, bias.clone()))
    assert torch.equal(*(attention_forward(q, k, v, scores, TILES)[0] for scores in (far, near)))
