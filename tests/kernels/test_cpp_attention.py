"""The C++ attention kernel is softcap, bias, mask, map and product one after the other, held to float64."""

import shutil
import subprocess
import sys
import threading

import pytest
import torch

from hf_sparse.functional import entmax
from hf_sparse.kernels import (
    Scores,
    _cpp_attention,
    cpp_attention_backward,
    cpp_attention_forward,
    cpp_attention_problem,
)
from tests.kernels.attention_cases import CASES, LEVELS, TOLERANCE, check, check_case, check_large_soft_cap
from tests.reference import clusters

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)


def hidden(scores):
    """The scores with an added mask as the kernel takes it, -inf where a key is hidden."""
    mask = scores.mask
    if mask is None or mask.dtype == torch.bool:
        return scores
    return scores._replace(mask=mask.masked_fill(mask <= torch.finfo(mask.dtype).min / 2, -torch.inf))


def forward(q, k, v, scores):
    return cpp_attention_forward(q, k, v, hidden(scores))


def backward(dout, q, k, v, tau, scores, learned):
    return cpp_attention_backward(dout, q, k, v, tau, hidden(scores), learned=learned)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients(scores, q, k, v, dout, temperature=1.0, learned=False):
    temperature = torch.as_tensor(temperature).expand(q.shape[1])
    out, tau = cpp_attention_forward(q, k, v, scores, temperature)
    return out, cpp_attention_backward(dout, q, k, v, tau, scores, temperature, learned)


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(name for name in case.values() if LEVELS[name]))
def test_outputs_and_gradients_are_those_of_float64(case):
    check_case(case.values(), forward, backward, device="cpu")


@pytest.mark.parametrize("ratio", [0.001, 0.1, 0.25, 0.5])
def test_scores_far_below_the_soft_cap_lose_no_digits_to_it(ratio):
    check_large_soft_cap(forward, ratio, "cpu", keys=300)


# At most 1.5: above, the gradient jumps where one of 90,000 scores meets a threshold, wherever rounding puts it.
# From every key, which is multiplied whole, to lists of a few.
@pytest.mark.parametrize("size", [0.01, 1.0, 3.0, 30.0])
@pytest.mark.parametrize(
    "settings",
    [
        {}, {"causal": True}, {"causal": True, "window": 90}, {"mask": "additive"}, {"softcap": True},
        {"alpha": 1.3}, {"alpha": 1.25}, {"alpha": None, "heads": 2, "sinks": True}, {"dtype": torch.bfloat16},
        {"queries": 170, "causal": True}, {"dim": 40, "value_dim": 24, "heads": 4, "key_heads": 1},
    ],
    ids=str,
)  # fmt: skip
def test_sequences_of_several_blocks_are_right_whole_and_listed(size, settings):
    check(forward, backward, "cpu", **{"queries": 300, "keys": 300, "size": size} | settings)


@pytest.mark.parametrize("alpha", [1.1, 1.25, 1.45, 1.5, 1.6, 1.7, 1.79])
def test_clusters_of_ties_near_the_threshold_are_no_less_exact(alpha):
    k, v = clusters(130, alpha)[::3, None, :, None], drawn(1, 1, 130, 16)
    q = torch.linspace(0.2, 3, 40).view(1, 1, -1, 1).expand(len(k), 1, -1, -1).contiguous()
    v = v.expand(len(k), -1, -1, -1).contiguous()
    out, _ = cpp_attention_forward(q, k, v, Scores(torch.tensor([alpha]), 1 / (alpha - 1), 1.0))
    p = entmax(q.double() @ k.double().mT, float(torch.tensor(alpha)), impl="torch")
    torch.testing.assert_close(out.double(), p @ v.double(), atol=TOLERANCE[torch.float32], rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_parts_of_the_queries_sum_up_to_the_whole(causal):
    """512 queries are summed up in two parts."""
    check(forward, backward, "cpu", queries=515, keys=515, causal=causal)


def skip_without_tiles():
    if not _cpp_attention.has_tiles():
        pytest.skip("this CPU has no tiles that multiply bfloat16 (AMX), or the system lets no process use them")


@pytest.fixture(params=["tiles", "vectors"])
def multiplier(request, monkeypatch):
    """What multiplies bfloat16: tiles, where this CPU has them, and vectors of float32."""
    if request.param == "tiles":
        skip_without_tiles()
    monkeypatch.setattr(_cpp_attention, "has_tiles", lambda: request.param == "tiles")


# From weights of every key, which are multiplied whole, to lists of a few.
@pytest.mark.parametrize("size", [0.01, 3.0, 30.0])
@pytest.mark.parametrize(
    "settings",
    [
        {}, {"queries": 32, "keys": 5}, {"queries": 33, "keys": 257}, {"queries": 300, "keys": 64, "heads": 4},
        {"queries": 129, "keys": 129, "causal": True}, {"queries": 200, "keys": 230, "causal": True, "window": 40},
        {"mask": "additive"}, {"mask": "left padding"}, {"softcap": True, "bias": "a pair"},
        {"alpha": None, "heads": 2, "sinks": True}, {"dim": 24, "value_dim": 40}, {"dim": 96, "value_dim": 128},
        {"layout": "one projection", "heads": 4, "key_heads": 2}, {"layout": "last axis apart"},
    ],
    ids=str,
)  # fmt: skip
def test_bfloat16_is_right_by_tiles_and_by_vectors(multiplier, size, settings):
    given = {"queries": 70, "keys": 90, "dim": 64, "size": size, "dtype": torch.bfloat16} | settings
    check(forward, backward, "cpu", **given)


@pytest.mark.parametrize("size", [0.01, 1.0, 30.0])
def test_tiles_lose_no_digits(monkeypatch, size):
    """Products of bfloat16 are exact in float32, and weights keep what one number in bfloat16 has no room for."""
    skip_without_tiles()
    q, k, v = drawn(3, 1, 2, 150, 64).bfloat16()
    # Values of one sign hide no error in their sum, and an output of some 1.5 shows what float32 rounds it to.
    v = (v.abs() + 1).bfloat16()
    scores = Scores(torch.tensor([1.5, 1.3]), 0, size)
    out, tau = cpp_attention_forward(q, k, v, scores)
    monkeypatch.setattr(_cpp_attention, "has_tiles", lambda: False)
    expected, threshold = cpp_attention_forward(q, k, v, scores)
    highest = (q.float() @ k.float().mT).amax(-1) * size * (scores.alpha - 1)[:, None]  # from which they are measured
    torch.testing.assert_close(tau + highest, threshold + highest, rtol=1e-5, atol=1e-5)
    # At most one number in fifty falls on the other side of a tie in the rounding of the result.
    assert float((out != expected).float().mean()) < 0.02


def test_tiles_leave_those_of_torch_as_they_were():
    """torch multiplies bfloat16 with tiles, too, and may keep their shapes from call to call."""
    a, b = drawn(2, 70, 50).bfloat16()
    q, k, v = drawn(3, 1, 2, 70, 40).bfloat16()
    scores = Scores(torch.full((2,), 1.5), 2, 1.0)
    expected = a @ b.mT, torch.nn.functional.scaled_dot_product_attention(q, k, v)
    ours = cpp_attention_forward(q, k, v, scores)[0]
    for _ in range(3):
        assert torch.equal(a @ b.mT, expected[0])
        assert torch.equal(cpp_attention_forward(q, k, v, scores)[0], ours)
        assert torch.equal(torch.nn.functional.scaled_dot_product_attention(q, k, v), expected[1])


@pytest.mark.parametrize("temperature", [0.5, 3.0, (0.5, 2.0)])
def test_a_temperature_divides_scores_and_sinks(temperature):
    q, k, v, dout = drawn(4, 1, 2, 70, 16) * 2
    sinks = torch.tensor([1.0, -1.0])
    alpha = torch.tensor([1.3, 1.5])
    temperature = torch.tensor(temperature).expand(2)
    by_head = temperature.view(-1, 1, 1)
    warm = Scores(alpha, 0, 0.5, sinks=sinks)
    out, found = gradients(warm, q, k, v, dout, temperature=temperature, learned=True)
    cold = Scores(alpha, 0, 0.5, sinks=sinks / temperature)
    expected, wanted = gradients(cold, q / by_head, k, v, dout, learned=True)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)  # queries are divided here, their products there
    wanted = wanted._replace(q=wanted.q / by_head, sinks=wanted.sinks / temperature)
    for ours, theirs in zip(found, wanted):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("change", [torch.Tensor.bfloat16, torch.Tensor.double, lambda x: x.repeat_interleave(2)[::2]])
def test_an_alpha_sinks_and_temperatures_of_any_dtype_and_strides(change):
    q, k, v, dout = drawn(4, 1, 2, 40, 16)
    given = torch.tensor([1.25, 1.5]), torch.tensor([0.5, -1.0]), torch.tensor([0.5, 2.0])
    (expected, wanted), (out, found) = (
        gradients(Scores(alpha, 0, 0.5, sinks=sinks), q, k, v, dout, temperature, learned=True)
        for alpha, sinks, temperature in (given, map(change, given))
    )
    assert torch.equal(out, expected)
    for own, other, like in zip(found, wanted, (q, k, v, *map(change, given))):
        torch.testing.assert_close(own, other.to(like.dtype))


def test_results_do_not_depend_on_the_number_of_threads():
    q, k, v, dout = drawn(4, 2, 4, 300, 16)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            out, found = gradients(Scores(torch.full((4,), 1.5), 2, 0.5, causal=True), q, k, v, dout)
            results.append((out, *found[:3]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(*results))


def test_threads_of_python_do_not_share_scratch():
    scores = Scores(torch.tensor([1.5]), 2, 1.0)
    inputs = [drawn(4, 1, 1, length, 16, seed=length) for length in (40, 130, 300)]
    expected = [gradients(scores, *x)[1].k for x in inputs]
    found = {}

    def work(i):
        for _ in range(20):
            found[i] = gradients(scores, *inputs[i])[1].k

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[i], expected[i]) for i in range(3))


def test_a_forked_process_computes_the_same():
    code = (
        "import os, sys, torch\n"
        "from hf_sparse.kernels import Scores, cpp_attention_forward\n"
        "q = torch.randn(1, 4, 300, 16)\n"
        "attend = lambda: cpp_attention_forward(q, q, q, Scores(torch.full((4,), 1.5), 2, 1.0))[0]\n"
        "torch.set_num_threads(1)\n"
        "out = attend()\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if torch.equal(attend(), out) else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0


def test_weights_are_normalized_to_the_last_bits_of_float32():
    q, k = drawn(2, 1, 2, 600, 16)
    for alpha in (1.5, 1.1, 2.0):
        for size in (0.01, 1.0):
            out, _ = cpp_attention_forward(q * size, k, torch.ones_like(k), Scores(torch.full((2,), alpha), 0, 1.0))
            torch.testing.assert_close(out, torch.ones_like(k), atol=2e-6, rtol=0)


@pytest.mark.parametrize("sinks", [None, torch.zeros(1)], ids=["no sink", "a sink"])
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_scores_far_from_zero_lose_no_digits_of_their_threshold(alpha, sinks):
    scores = torch.full((20, 200), 300.0)
    scores[:, 7] += torch.linspace(0.9, 0.99, 20) / (alpha - 1)
    queries, keys = torch.eye(16)[:1].expand(20, 1, 1, 16), torch.zeros(20, 1, 200, 16)
    keys[:, 0, :, 0], values, dout = scores, drawn(20, 1, 200, 16), drawn(20, 1, 1, 16, seed=1)
    settings = Scores(torch.tensor([alpha]), 0.0, 1.0, sinks=sinks)
    out, found = gradients(settings, queries, keys, values, dout)
    p = entmax(scores.double(), float(torch.tensor(alpha)))[:, None, None]
    torch.testing.assert_close(out.double(), p @ values.double(), atol=TOLERANCE[torch.float32], rtol=0)
    torch.testing.assert_close(found.v.double(), p.mT @ dout.double(), atol=TOLERANCE[torch.float32], rtol=0)


@pytest.mark.slow
def test_no_matrix_of_scores_is_allocated():
    """4,096 queries and keys have 64 MB of scores in a head; the kernel may take a tenth."""
    code = (
        "import resource, torch\n"
        "from hf_sparse.kernels import Scores, cpp_attention_backward, cpp_attention_forward\n"
        "torch.set_num_threads(1)\n"
        "def step(length):\n"
        "    q, k, v, dout = torch.randn(4, 1, 2, length, 16)\n"
        "    scores = Scores(torch.full((2,), 1.5), 2, 1.0, causal=True)\n"
        "    _, tau = cpp_attention_forward(q, k, v, scores)\n"
        "    cpp_attention_backward(dout, q, k, v, tau, scores)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(-step(64) + step(4096))"
    )
    grown = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100).stdout)
    assert grown < 13_000  # kilobytes


def test_a_score_that_is_nan_or_infinite_shows_in_its_rows_alone():
    q, k, v = drawn(3, 1, 1, 100, 16)
    for alpha in (1.5, 1.3):
        scores = Scores(torch.tensor([alpha]), 2, 1.0, causal=True)
        expected, _ = cpp_attention_forward(q, k, v, scores)
        bad_q, bad_k = q.clone(), k.clone()
        bad_q[..., 5, 0], bad_q[..., 7, :], bad_k[..., 80, 2] = torch.nan, 3e38, torch.nan
        out, _ = cpp_attention_forward(bad_q, bad_k, v, scores)
        strange = torch.tensor([5, 7, *range(80, 100)])
        assert bool(out[0, 0, strange].isnan().all())
        rest = torch.ones(100, dtype=torch.bool).index_fill(0, strange, False)
        torch.testing.assert_close(out[0, 0, rest], expected[0, 0, rest], atol=1e-6, rtol=0)


@pytest.mark.parametrize("alpha", [1.5, 1.3])
def test_a_hidden_key_may_hold_anything(alpha):
    q, k, v = drawn(3, 1, 1, 100, 16)
    scores = Scores(torch.tensor([alpha]), 0, 1.0, mask=torch.arange(100).expand(1, 1, 100, 100) != 40)
    expected, _ = cpp_attention_forward(q, k, v, scores)
    for strange in (torch.nan, torch.inf, -torch.inf):
        k[..., 40, :] = strange
        assert torch.equal(cpp_attention_forward(q, k, v, scores)[0], expected)


def test_ties_share_the_weight_and_are_listed_together():
    q = torch.ones(1, 1, 33, 16)
    k = torch.zeros(1, 1, 200, 16)
    k[..., [3, 77, 199], :] = 1.0
    v = torch.arange(200.0)[:, None].expand(1, 1, 200, 16).contiguous()
    out, _ = cpp_attention_forward(q, k, v, Scores(torch.tensor([1.5]), 2, 1.0))
    torch.testing.assert_close(out, torch.full_like(out, (3 + 77 + 199) / 3))


def test_many_random_shapes_agree_with_torch():
    generator = torch.Generator().manual_seed(1)

    def pick(*values):
        return values[int(torch.randint(len(values), (), generator=generator))]

    for seed in range(40):
        key_heads, group, dim = pick(1, 2), pick(1, 3), pick(3, 16, 20, 64)
        queries, keys = (int(torch.randint(1, 150, (), generator=generator)) for _ in range(2))
        alpha, causal = pick(1.1, 1.5, 1.7, 2.0), pick(True, False)
        q = drawn(2, key_heads * group, queries, dim, seed=seed) * pick(0.1, 1.0, 5.0)
        k, v = drawn(2, 2, key_heads, keys, dim, seed=seed + 1)
        scores = Scores(torch.full((key_heads * group,), alpha), 0, dim**-0.5, causal=causal)
        out, _ = cpp_attention_forward(q, k, v, scores)
        z = dim**-0.5 * q @ k.repeat_interleave(group, 1).mT
        if causal:
            late = torch.arange(keys) > torch.arange(keys - queries, keys)[:, None]
            z = z.masked_fill(late, -torch.inf)
        expected = entmax(z, alpha, impl="torch") @ v.repeat_interleave(group, 1)
        torch.testing.assert_close(out, expected, atol=2e-5, rtol=0)


class Strange(torch.Tensor):
    """A tensor that may hold its numbers elsewhere."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(2, 2, 5, 8)}, r"of one batch and keys like queries, were of shapes \(1, 4, 5, 8\)"),
        ({"k": torch.zeros(1, 2, 5, 9)}, "of one batch and keys like queries"),
        ({"v": torch.zeros(1, 2, 6, 8)}, "of one batch and keys like queries"),
        ({"k": torch.zeros(2, 2, 5, 8), "v": torch.zeros(2, 2, 5, 8)}, "of one batch and keys like queries"),
        ({"k": torch.zeros(1, 3, 5, 8), "v": torch.zeros(1, 3, 5, 8)}, "takes heads in groups of equal size, were 4"),
        ({"q": torch.zeros(1, 4, 0, 8)}, "takes at least one query and one key"),
        ({"q": torch.zeros(1, 4, 5, 8).double()}, "takes queries, keys and values of one dtype of torch.float32"),
        ({"q": torch.zeros(1, 4, 5, 8, device="meta")}, "takes plain tensors on the CPU, was Tensor on meta"),
        ({"q": torch.zeros(1, 4, 5, 8).as_subclass(Strange)}, "takes plain tensors on the CPU, was Strange on cpu"),
        ({"sinks": torch.zeros(3)}, r"takes one sink for each of 4 heads, were of shape \(3,\)"),
    ],
)
def test_what_the_kernel_would_read_wrongly_is_named(change, message):
    given = {"q": torch.zeros(1, 4, 5, 8), "k": torch.zeros(1, 2, 5, 8), "v": torch.zeros(1, 2, 5, 8), "sinks": None}
    assert cpp_attention_problem(*given.values()) is None
    assert cpp_attention_problem(*(given | {"q": torch.nn.Parameter(given["q"])}).values()) is None
    with pytest.raises(ValueError, match=message):
        raise ValueError(cpp_attention_problem(*(given | change).values()))
