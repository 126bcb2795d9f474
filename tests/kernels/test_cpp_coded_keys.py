"""Attention over keys in 8 bits gives the weights of float64, and reads no key without need."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_sparse.functional import entmax
from hf_sparse.kernels import CodedKeys, Scores, attend_to_coded, code_keys_, coding_problem
from tests.tolerances import WEIGHT

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)
HALVES = [torch.float32, torch.bfloat16, torch.float16]
# batch, heads, key heads, queries, keys, head_dim
SHAPES = [
    (1, 9, 3, 1, 500, 64),
    (2, 4, 4, 3, 77, 20),
    (1, 8, 1, 2, 300, 128),
    (2, 4, 2, 1, 16, 130),
    (1, 2, 2, 9, 33, 96),
]
ADDED = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 10},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": 2.0},
    "mask": {"mask": True},
    "added mask": {"mask": -torch.inf},
    "bias": {"bias": 3.0},
}


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def coded(keys, first=0):
    room = CodedKeys.empty(keys)
    assert code_keys_(room, keys, first)
    return room


def scores_of(q, k, scaling, alpha, causal=False, window=None, softcap=None, bias=None, mask=None, sinks=None):
    """What the kernel is told, and the scores (batch, heads, queries, keys, and a sink) in float64."""
    batch, heads, num_queries, num_keys = *q.shape[:3], k.shape[2]
    bias = None if bias is None else bias * random(1, heads, num_queries, num_keys, seed=5)
    visible = random(batch, 1, 1, num_keys, seed=6) > -0.5
    sinks = None if sinks is None else sinks * random(heads, seed=7)
    if mask is not None:
        mask = visible if mask is True else torch.where(visible, 0.0, mask)
    told = Scores(alpha, 0.0, scaling, causal, window, softcap, bias, mask, sinks)
    z = scaling * q.double() @ k.double().repeat_interleave(heads // k.shape[1], 1).mT
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    z = z if bias is None else z + bias.double()
    z = z if mask is None else z.masked_fill(~visible, -torch.inf)
    if causal:
        behind = torch.arange(num_keys - num_queries, num_keys)[:, None] - torch.arange(num_keys)
        z = z.masked_fill((behind < 0) | (behind >= (window or num_keys)), -torch.inf)
    if sinks is not None:
        z = torch.cat([z, sinks.double().view(1, -1, 1, 1).expand(*z.shape[:3], 1)], -1)
    return told, z


def num_keys_above(weights, least, key_heads):
    """How many keys some query has given more weight, over the heads that share them."""
    return int((weights > least).unflatten(1, (key_heads, -1)).any(2).any(2).sum())


def check(q, k, scaling=None, alpha=None, temperature=None, room=None, **added):
    """Compare weights, which values that are unit vectors give, with entmax in float64; returns what was read."""
    heads, num_keys = q.shape[1], k.shape[2]
    alpha = torch.linspace(1.1, 2, heads) if alpha is None else torch.full((heads,), alpha)
    temperature = torch.linspace(0.7, 3, heads) if temperature is None else torch.full((heads,), temperature)
    scaling = q.shape[3] ** -0.5 if scaling is None else scaling
    told, z = scores_of(q, k, scaling, alpha, **added)
    values = torch.eye(num_keys, dtype=k.dtype).expand(*k.shape[:2], -1, -1).contiguous()
    found = attend_to_coded(q, k, values, coded(k) if room is None else room, told, temperature)
    assert found is not None
    weights, read = found
    by_head = [entmax(z[:, h] / float(temperature[h]), float(alpha[h]), impl="torch") for h in range(heads)]
    expected = torch.stack(by_head, 1)[..., :num_keys]
    # A score is as exact as one dot product in float32.
    rounding = 1e-6 * z[z.isfinite()].abs().max() * float((1 / temperature).max())
    assert float((weights.double() - expected).abs().max()) <= 5 * WEIGHT[torch.float32] + rounding
    return read, expected


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_are_those_of_float64(shape, added, dtype):
    batch, heads, key_heads, num_queries, num_keys, head_dim = shape
    q = 2 * random(batch, heads, num_queries, head_dim)
    k = random(batch, key_heads, num_keys, head_dim, seed=1, dtype=dtype)
    read, expected = check(q, k, **added)
    assert read.values <= read.keys
    assert read.values >= num_keys_above(expected, 1e-5, key_heads)


def test_few_keys_are_read_beyond_the_support():
    q, k = 3 * random(1, 9, 1, 64), random(1, 3, 4096, 64, seed=1)
    read, expected = check(q, k, alpha=1.5, temperature=1.0)
    support = num_keys_above(expected, 0, 3)
    assert read.coded == 3 * 4096
    assert read.values == support
    assert read.keys < 2 * support


ADVERSARIAL = {
    "ties": lambda k: k[:, :, 1::2].copy_(k[:, :, ::2]),
    "all equal": lambda k: k.copy_(k[:, :, :1].expand_as(k).clone()),
    "zeros": lambda k: k.zero_(),
    "one column": lambda k: k[..., 3].mul_(1e3),
    "one huge key": lambda k: k[:, :, 7].mul_(1e4),
    "tiny": lambda k: k.mul_(1e-25),
    "close calls": lambda k: k.copy_(k[:, :, :1] * (1 + 1e-4 * random(*k.shape[:3], 1, seed=3))),
    "spread": lambda k: k.mul_(10.0 ** torch.linspace(-20, 2, k.shape[2])[:, None]),
}


@pytest.mark.parametrize("spoil", ADVERSARIAL.values(), ids=ADVERSARIAL)
@pytest.mark.parametrize("alpha", [1.02, 1.5, 2.0])
def test_keys_that_are_hard_on_a_bound(spoil, alpha):
    q, k = random(2, 4, 2, 100), random(2, 2, 200, 100, seed=1)
    spoil(k)
    for size in (1.0, 1e-30, 30.0, 0.0):
        check(size * q, k, alpha=alpha, temperature=1.0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    num_keys=st.integers(1, 70),
    head_dim=st.integers(1, 140),
    alpha=st.floats(1.02, 2),
    temperature=st.floats(0.1, 10),
    size=st.sampled_from([1e-3, 1.0, 20.0]),
)
def test_random_calls(seed, num_keys, head_dim, alpha, temperature, size):
    q, k = size * random(1, 2, 2, head_dim, seed=seed), random(1, 1, num_keys, head_dim, seed=seed + 1)
    check(q, k, alpha=round(alpha, 3), temperature=round(temperature, 3), causal=num_keys > 1)


def test_keys_are_coded_one_after_another_as_all_at_once():
    k = random(2, 3, 50, 72, dtype=torch.bfloat16)
    at_once, step_by_step = coded(k), CodedKeys.empty(k)
    for x in (*at_once, *step_by_step):  # what no key wrote
        x[:, :, 3] = 0
    code_keys_(at_once, k, 0)
    for length in (5, 6, 16, 17, 50):
        assert code_keys_(step_by_step, k[:, :, :length], {5: 0, 6: 5, 16: 6, 17: 16, 50: 17}[length])
    assert all(torch.equal(a, b) for a, b in zip(at_once, step_by_step))


def test_keys_in_a_longer_memory():
    room = random(2, 2, 64, 40)
    k = room[:, :, :37]
    check(random(2, 4, 1, 40, seed=2), k, room=coded(k))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
def test_what_is_not_finite_or_huge_is_left_to_others(bad):
    q, k = random(1, 2, 1, 40), random(1, 2, 30, 40, seed=1)
    room, told = coded(k), Scores(torch.full((2,), 1.5), 0.0, 0.2, False, None, None, None, None, None)
    spoiled = k.clone()
    spoiled[0, 1, 29, 39] = bad
    assert not code_keys_(CodedKeys.empty(k), spoiled, 0)
    query = q.clone()
    query[0, 1, 0, 0] = bad
    assert attend_to_coded(query, k, k, room, told, torch.ones(2)) is None
    bias = torch.zeros(1, 2, 1, 30)
    bias[0, 1, 0, 3] = bad if bad != 1e30 else torch.inf
    assert attend_to_coded(q, k, k, room, told._replace(bias=bias), torch.ones(2)) is None


def test_bytes_of_other_keys_are_noticed_where_a_key_is_read():
    q, k = random(1, 2, 1, 64), random(1, 2, 300, 64, seed=1)
    told = Scores(torch.full((2,), 1.5), 0.0, 0.125, False, None, None, None, None, None)
    for other in (2 * k, -k, k.flip(2)):
        assert attend_to_coded(q, k, k, coded(other), told, torch.ones(2)) is None


def test_a_query_that_sees_nothing_gets_nothing():
    q, k = random(1, 2, 1, 40), random(1, 2, 30, 40, seed=1)
    hidden = torch.zeros(1, 1, 1, 30, dtype=torch.bool)
    for sinks in (None, torch.ones(2)):
        told = Scores(torch.full((2,), 1.5), 0.0, 0.2, False, None, None, None, hidden, sinks)
        out, read = attend_to_coded(q, k, k, coded(k), told, torch.ones(2))
        assert bool((out == 0).all())
        assert (read.keys, read.values) == (0, 0)


def test_results_do_not_depend_on_the_number_of_threads():
    q, k, before = 2 * random(3, 8, 2, 64), random(3, 4, 3000, 64, seed=1), torch.get_num_threads()
    told, found = Scores(torch.linspace(1.1, 2, 8), 0.0, 0.125, True, None, None, None, None, None), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            room = coded(k)
            out, read = attend_to_coded(q, k, k, room, told, torch.ones(8))
            found.append((out, torch.tensor(read)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(other, found[0]))


def test_tensors_that_cannot_be_coded_are_named():
    x = random(1, 1, 2, 4)
    assert coding_problem(x, x) is None
    assert "torch.float64 on cpu" in coding_problem(x.double(), x.double())
    assert coding_problem(x, x.half()) == "takes keys and values of one dtype, were torch.float32, torch.float16"
