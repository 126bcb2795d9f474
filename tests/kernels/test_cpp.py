"""The C++ kernel gives what torch gives: maps, losses, gradients, on every kind of row."""

import shutil

import pytest
import torch
import torch.nn.functional as F

from hf_sparse import kernels
from hf_sparse.functional import entmax, entmax15, sparsemax
from hf_sparse.functional._entmax_rows import EntmaxRows
from hf_sparse.losses import (
    _dispatch,
    alpha_relu_loss,
    entmax15_loss,
    entmax_loss,
    linear_alpha_relu_loss,
    linear_entmax_loss,
    sparsemax_loss,
)
from tests.reference import clusters, entmax_by_bisection
from tests.tolerances import GRADIENT, MASS, WEIGHT

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)
HALVES = [torch.float32, torch.bfloat16, torch.float16]
# Whole rows below 4096, one streaming read above; supports from one entry to all.
LENGTHS = [1, 2, 5, 63, 128, 300, 1024, 4096, 5001, 20_000]
SCALES = {"all": 1e-5, "most": 0.1, "many": 0.5, "several": 2.0, "two": 12.0, "one": 1e3}


def scores(num_rows, length, scale, dtype=torch.float32):
    return (torch.randn(num_rows, length, generator=torch.Generator().manual_seed(length)) * scale).to(dtype)


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual.double(), expected.double(), atol=tolerance, rtol=0, equal_nan=True)


@pytest.mark.parametrize("alpha", [1.1, 1.25, 1.3, 4 / 3, 1.5, 1.8, 2.0])
@pytest.mark.parametrize("length", LENGTHS)
def test_weights_are_those_of_the_specification_for_supports_of_all_sizes(alpha, length):
    for scale in SCALES.values():
        for dtype in HALVES:
            z = scores(4, length, scale, dtype)
            close(entmax(z, alpha, impl="cpp"), entmax_by_bisection(z, alpha), WEIGHT[dtype])


@pytest.mark.parametrize("exponent", [5, 6, 7, 9, 15, 19, 20, 21])
@pytest.mark.parametrize("length", [3, 65, 500, 6000])
def test_weights_and_losses_of_whole_exponents(exponent, length):
    alpha, y = 1 + 1 / exponent, torch.tensor([0, 1, 2, 0])
    for scale in SCALES.values():
        z = scores(4, length, scale)
        expected = entmax_by_bisection(z, alpha)
        close(entmax(z, alpha, impl="cpp"), expected, WEIGHT[torch.float32])
        z.requires_grad_()
        loss = entmax_loss(z, y, alpha, impl="cpp", reduction="none")
        close(
            loss,
            entmax_loss(z.double(), y, alpha, impl="torch", reduction="none"),
            MASS[torch.float32] * max(1, float(z.max())),
        )
        close(torch.autograd.grad(loss.sum(), z)[0], expected - F.one_hot(y, length), GRADIENT[torch.float32])


def test_the_scales_above_give_supports_of_one_two_many_and_all():
    sizes = {name: int((sparsemax(scores(4, 5001, scale), impl="cpp")[0] > 0).sum()) for name, scale in SCALES.items()}
    assert sizes["one"] == 1
    assert sizes["all"] == 5001
    assert sorted(sizes.values(), reverse=True) == list(sizes.values())
    pair = torch.full((1, 5001), -9.0).index_fill_(1, torch.tensor([7, 4999]), 3.0)
    assert sparsemax(pair, impl="cpp").nonzero().tolist() == [[0, 7], [0, 4999]]


@pytest.mark.parametrize("alpha", [1.1, 1.25, 1.45, 1.5, 1.6, 1.7, 1.79, 1.9, 2.0])
@pytest.mark.parametrize("length", [17, 64, 500, 2000, 8000])
def test_clusters_of_ties_near_the_threshold_are_no_less_exact(alpha, length):
    z = clusters(length, alpha)[:: 3 if length < 2000 else 31]
    p = entmax(z, alpha, impl="cpp")
    close(p, entmax_by_bisection(z, alpha), WEIGHT[torch.float32])
    close(p.double().sum(-1), torch.ones(len(z)), MASS[torch.float32])


@pytest.mark.parametrize("length", [64, 6000])
@pytest.mark.parametrize("offset", [1e4, 1e8, -1e8])
def test_offsets_do_not_matter(length, offset):
    z = (scores(3, length, 30.0).double() + offset).float()
    close(entmax15(z, impl="cpp"), entmax_by_bisection(z, 1.5), WEIGHT[torch.float32])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("length", [7, 300, 6000])
def test_masked_positions_get_exactly_zero_and_nan_stays_in_its_row(dtype, length):
    z = scores(6, length, 2.0, dtype)
    z[0], z[1, 3:], z[2, ::2] = -torch.inf, -torch.inf, -torch.inf
    z[3, length - 1], z[4, 1] = torch.nan, torch.inf
    for p in (entmax15(z, impl="cpp"), entmax15(z.clone().requires_grad_(), impl="cpp").detach()):
        assert bool((p[0] == 0).all())
        assert bool((p[1, 3:] == 0).all())
        assert bool((p[2, ::2] == 0).all())
        assert bool(p[3:5].isnan().all())
        close(p[[1, 2, 5]], entmax_by_bisection(z[[1, 2, 5]], 1.5), WEIGHT[dtype])


def test_scores_masked_until_late_in_the_row_and_rows_that_only_rise():
    z = torch.full((2, 20_000), -torch.inf)
    z[0, 15_000:] = scores(1, 5000, 1.0)[0]
    z[1] = torch.linspace(-500, 500, 20_000)
    close(entmax15(z, impl="cpp"), entmax_by_bisection(z, 1.5), WEIGHT[torch.float32])


@pytest.mark.parametrize("length", [10, 6000])
def test_ties_share_the_weight_equally(length):
    z = torch.zeros(1, length)
    z[0, [0, 5, 9]] = 20.0
    for alpha in (1.3, 1.5, 2.0):
        p = entmax(z, alpha, impl="cpp")
        close(p[0, [0, 5, 9]], torch.full((3,), 1 / 3), WEIGHT[torch.float32])
        assert int((p > 0).sum()) == 3


@pytest.mark.parametrize("length", [1, 3, 16, 17, 130, 5001])
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_logarithms_are_exact_and_zeros_keep_the_order_of_their_scores(length, scale):
    z = scores(5, length, scale)
    z[1, length // 2 :] = -torch.inf
    for p in (entmax15(z), entmax(z, 1.05), z.softmax(-1)):
        kept, normal = p.double(), torch.finfo(torch.float32).tiny
        order = (z - z.amax(-1, keepdim=True)).clamp(min=-50.0)
        expected = torch.where(kept > 0, kept.clamp(min=normal).log(), order.double() - 50)
        found = kernels.log_weights_(p, z, -50.0)
        assert found is p
        full = z[:, 0] > -torch.inf  # a row of masked entries has no logarithms
        torch.testing.assert_close(found.double()[full], expected[full], rtol=3e-7, atol=3e-7)
        assert found[~full].isnan().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("length", [5, 70])
def test_rows_without_a_finite_maximum_have_no_logarithms(bad, length):
    z = scores(3, length, 1.0)
    z[1] = bad if bad < 0 else z[1].index_fill(0, torch.tensor([2]), bad)
    found = kernels.log_weights_(entmax15(z), z, -50.0)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()


def test_any_dim_stride_and_no_rows():
    z = scores(6, 5000, 3.0).view(2, 3, 5000)
    for dim in (0, 1, 2):
        close(sparsemax(z, dim, impl="cpp"), sparsemax(z.double(), dim), WEIGHT[torch.float32])
    assert entmax15(torch.zeros(0, 5000), impl="cpp").shape == (0, 5000)
    assert entmax15(torch.zeros(0, 8, requires_grad=True), impl="cpp").shape == (0, 8)


@pytest.mark.parametrize("scale", [0.05, 2.0])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("alpha", [1.1, 1.3, 1.5, 2.0])
@pytest.mark.parametrize("length", [5, 200, 1500, 6000])
def test_gradients_of_maps_are_those_of_the_specification_in_float64(alpha, length, dtype, scale):
    z, upstream = scores(4, length, scale, dtype), scores(4, length, 1.0, dtype)
    z[0, 1:] = -torch.inf
    z[1, 2:4] = z[1].max()
    upstream[0, 1] = torch.inf  # off the support: it must not enter the mean
    leaf, exact = z.clone().requires_grad_(), z.double().requires_grad_()
    (actual,) = torch.autograd.grad(entmax(leaf, alpha, impl="cpp"), leaf, upstream)
    (expected,) = torch.autograd.grad(entmax(exact, alpha, impl="torch"), exact, upstream.double())
    assert actual.dtype == dtype
    close(actual, expected, GRADIENT[dtype])


@pytest.mark.parametrize("length", [5, 200])
def test_upstream_gradients_that_are_no_numbers_stay_in_their_row(length):
    z, upstream = scores(3, length, 1e-4, torch.bfloat16).requires_grad_(), torch.ones(3, length, dtype=torch.bfloat16)
    upstream[1, 2] = torch.nan
    (slope,) = torch.autograd.grad(entmax15(z, impl="cpp"), z, upstream)
    assert slope.isnan().all(-1).tolist() == [False, True, False]
    assert slope[[0, 2]].isfinite().all()


def test_second_derivatives_and_transforms_go_through_the_kernel():
    z, v = scores(3, 40, 1.0), scores(3, 40, 0.5)

    def curvature(impl, dtype):
        leaf = z.to(dtype).requires_grad_()
        (first,) = torch.autograd.grad((entmax15(leaf, impl=impl) ** 3).sum(), leaf, create_graph=True)
        return torch.autograd.grad((first * v.to(dtype)).sum(), leaf)[0]

    close(curvature("cpp", torch.float32), curvature("torch", torch.float64), GRADIENT[torch.float32])
    close(curvature("cpp", torch.bfloat16), curvature("torch", torch.float64), GRADIENT[torch.bfloat16])
    mapped = torch.func.vmap(lambda row: entmax15(row, impl="cpp"))(z)
    close(mapped, entmax15(z.double()), WEIGHT[torch.float32])
    slope = torch.func.grad(lambda x: entmax15(x, impl="cpp").square().sum())(z)
    expected = torch.func.grad(lambda x: entmax15(x).square().sum())(z.double())
    close(slope, expected, GRADIENT[torch.float32])


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
@pytest.mark.parametrize("length", [64, 512, 6000])
def test_derivatives_of_bfloat16_are_rounded_once_whichever_way_they_are_asked_for(length, alpha):
    z, upstream = scores(16, length, 2.0, torch.bfloat16).requires_grad_(), scores(16, length, 1.0, torch.bfloat16)
    (wanted,) = torch.autograd.grad(EntmaxRows.call(z, alpha, "cpp"), z, upstream)
    (many,) = torch.autograd.grad(EntmaxRows.call(z, alpha, "cpp"), z, upstream[None], is_grads_batched=True)
    # The Jacobian is symmetric: its product with a tangent is that with an upstream gradient.
    _, tangent = torch.func.jvp(lambda z: EntmaxRows.call(z, alpha, "cpp"), (z.detach(),), (upstream,))
    for found in (many[0], tangent):
        torch.testing.assert_close(found, wanted, atol=WEIGHT[torch.float32], rtol=2**-7)  # one unit in the last place


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("length", [200, 6000])
def test_many_gradients_at_once_are_those_one_by_one(length, dtype):
    z, upstream = scores(4, length, 2.0, dtype).requires_grad_(), scores(12, length, 1.0, dtype).view(3, 4, length)
    p = entmax15(z, impl="cpp")
    (found,) = torch.autograd.grad(p, z, upstream, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(p, z, one, retain_graph=True)[0] for one in upstream]
    close(found, torch.stack(each), GRADIENT[dtype])


LOSSES = {
    "entmax15": entmax15_loss,
    "sparsemax": sparsemax_loss,
    "entmax 1.3": lambda z, y, **options: entmax_loss(z, y, 1.3, **options),
    "alpha_relu": lambda z, y, **options: alpha_relu_loss(z, y, 1.5, 0.7, **options),
    "alpha_relu 1.7": lambda z, y, **options: alpha_relu_loss(z, y, 1.7, 0.1, **options),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("length", [50, 1500, 9000])
@pytest.mark.parametrize("scale", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("soft", [False, True])
def test_losses_and_their_gradients_are_those_of_the_specification(name, length, scale, soft):
    z, y = scores(6, length, scale), torch.arange(6) % length
    z[0, 7], z[1, 10:], z[2, :9] = torch.nan, -torch.inf, 50.0
    y[0] = -100
    if soft:
        y = torch.zeros(6, length).scatter_(1, (torch.arange(6)[:, None] + torch.tensor([0, 3])) % length, 0.5)
        y[0] = 0
    results = []
    for impl, dtype in (("cpp", torch.float32), ("torch", torch.float64)):
        leaf = z.to(dtype).requires_grad_()
        loss = LOSSES[name](leaf, y.to(dtype) if soft else y, reduction="none", impl=impl)
        results.append((loss.detach(), *torch.autograd.grad(loss.sum(), leaf)))
    (loss, slope), (expected_loss, expected_slope) = results
    torch.testing.assert_close(loss.double(), expected_loss, atol=1e-5, rtol=2e-6)
    # alpha-ReLU's weights are not bounded by one.
    torch.testing.assert_close(slope.double(), expected_slope, atol=GRADIENT[torch.float32], rtol=1e-5)


@pytest.mark.parametrize("length", [300, 9000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_losses_of_half_precision_logits(dtype, length):
    z, y = scores(4, length, 3.0, dtype), torch.arange(4)
    for loss in LOSSES.values():
        leaf, exact = z.clone().requires_grad_(), z.double().requires_grad_()
        value, expected = loss(leaf, y, impl="cpp"), loss(exact, y, impl="torch")
        torch.testing.assert_close(value.detach().double(), expected.detach(), atol=1e-5, rtol=1e-6)
        (slope,), (wanted,) = torch.autograd.grad(value, leaf), torch.autograd.grad(expected, exact)
        assert slope.dtype == dtype
        # alpha-ReLU's weights are not bounded by one.
        torch.testing.assert_close(slope.double(), wanted, atol=GRADIENT[dtype], rtol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("alpha", [1.02, 1.1, 1.3, 4 / 3, 1.5, 1.7, 2.0])
@pytest.mark.parametrize("length", [1, 2, 17, 130, 300, 1023])
def test_losses_of_short_rows_are_solved_side_by_side(length, alpha):
    z, y = scores(19, length, 2.0), torch.arange(19) % length
    z[3], z[5, : length // 2], z[7] = -torch.inf, -torch.inf, 1e4 * z[7]
    z[5, y[5]], z[11, y[11]] = 0.0, torch.inf
    results = []
    for impl, dtype in (("cpp", torch.float32), ("torch", torch.float64)):
        leaf = z.to(dtype).requires_grad_()
        loss = entmax_loss(leaf, y, alpha, reduction="none", impl=impl)
        results.append((loss.detach(), *torch.autograd.grad(loss, leaf, torch.arange(19.0).to(dtype) / 19)))
    for ours, wanted in zip(*results):
        torch.testing.assert_close(ours.double(), wanted, atol=GRADIENT[torch.float32], rtol=2e-6, equal_nan=True)


def test_targets_of_short_losses_may_be_strided_and_gradients_scaled_up():
    z, wide = scores(64, 200, 1.0, torch.float16).requires_grad_(), torch.arange(64 * 3).view(64, 3)
    (slope,) = torch.autograd.grad(entmax_loss(z, wide[:, 1], 1.3, reduction="sum", impl="cpp"), z, torch.tensor(7e4))
    exact = z.detach().double().requires_grad_()
    loss = entmax_loss(exact, wide[:, 1], 1.3, reduction="sum", impl="torch")
    (wanted,) = torch.autograd.grad(loss, exact, torch.tensor(7e4, dtype=torch.float64))
    finite = wanted.abs() < torch.finfo(torch.float16).max
    torch.testing.assert_close(slope.double()[finite], wanted[finite], atol=1e-2, rtol=torch.finfo(torch.float16).eps)


def test_second_derivatives_of_short_losses_are_those_of_torch():
    z, y = scores(3, 40, 0.5), torch.tensor([0, 3, 39])
    found = []
    for impl, dtype in (("cpp", torch.float32), ("torch", torch.float64)):
        leaf = z.to(dtype).requires_grad_()
        (first,) = torch.autograd.grad(entmax15_loss(leaf, y, impl=impl), leaf, create_graph=True)
        found.append(torch.autograd.grad((first**2).sum(), leaf)[0])
    close(*found, GRADIENT[torch.float32])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("length", [11, 130, 1031, 20_001])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_cross_entropy_is_that_of_torch_in_float64(scale, length, dtype):
    z, y = scores(9, length, scale, dtype), torch.arange(9) * 113 % length
    z[0], z[1, length // 3 :], z[2, y[2]], z[3, 5] = torch.nan, -torch.inf, -torch.inf, torch.nan
    z[4, 6], z[5], z[6] = torch.inf, -torch.inf, -7.0
    y[0] = -100
    results = []
    for impl, given in (("cpp", z), ("torch", z.double())):
        leaf = given.clone().requires_grad_()
        loss = entmax_loss(leaf, y, 1.0, reduction="none", impl=impl)
        results.append((loss.detach(), *torch.autograd.grad(loss, leaf, torch.linspace(0.5, 1.5, 9).to(loss.dtype))))
    (loss, slope), (expected_loss, expected_slope) = results
    assert (loss.dtype, slope.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(loss.double(), expected_loss, atol=1e-6, rtol=1e-6, equal_nan=True)
    rounding = {"atol": GRADIENT[dtype], "rtol": torch.finfo(dtype).eps}
    torch.testing.assert_close(slope.double(), expected_slope, **rounding, equal_nan=True)
    assert bool((slope[1, length // 3 :][y[1] - length // 3 != torch.arange(length - length // 3)] == 0).all())
    assert bool((slope[0] == 0).all())


def test_cross_entropy_is_the_kernels_for_long_rows_alone_and_where_it_can_be_differentiated(monkeypatch):
    kernels.require_cpp()
    calls = []
    write = _dispatch.cross_entropy_by_kernel
    monkeypatch.setattr(_dispatch, "cross_entropy_by_kernel", lambda z, y: calls.append(z.shape) or write(z, y))
    z, y = scores(3, 1200, 1.0), torch.tensor([0, 3, 39])
    wanted = torch.func.grad(lambda z: torch.nn.functional.cross_entropy(z, y))(z)
    close(torch.func.grad(lambda z: entmax_loss(z, y, 1.0))(z), wanted, GRADIENT[torch.float32])
    for other in (z[:, :1000], z.double()):
        entmax_loss(other, y, 1.0)
    entmax_loss(z, y, 1.0, impl="torch")
    entmax_loss(z, torch.nn.functional.one_hot(y, 1200).float(), 1.0)
    assert calls == []
    found = []
    for impl in ("auto", "torch"):
        leaf = z.clone().requires_grad_()
        (first,) = torch.autograd.grad(entmax_loss(leaf, y, 1.0, impl=impl), leaf, create_graph=True)
        close(first, wanted, GRADIENT[torch.float32])
        found.append(torch.autograd.grad((first**2).sum(), leaf)[0])
    close(*found, GRADIENT[torch.float32])
    assert calls == [z.shape]


@pytest.mark.parametrize("alpha", [1 + 1e-12, 1 + 1e-8, 1 + 9e-8])
def test_losses_this_close_to_softmax_are_those_of_softmax(alpha):
    z, y = scores(3, 1200, 3.0), torch.tensor([0, 3, 39])
    torch.testing.assert_close(entmax_loss(z, y, alpha), entmax_loss(z, y, 1.0), atol=0, rtol=0)
    exact = entmax_loss(z.double(), y, alpha)
    torch.testing.assert_close(entmax_loss(z, y, alpha).double(), exact, atol=1e-6, rtol=1e-6)
    soft = torch.nn.functional.one_hot(y, 1200).float()
    torch.testing.assert_close(entmax_loss(z, soft, alpha), entmax_loss(z, y, alpha), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("deviation", "shift"),
    [(0.3, 0.0), (0.3, -5.0), (0.3, 30.0), (0.3, -30.0), (0.5, 0.0), (0.5, -5.0), (0.5, 300.0), (0.5, -300.0)],
)
@pytest.mark.parametrize("name", LOSSES)
def test_long_rows_of_bfloat16_that_are_mostly_support(name, deviation, shift):
    """They are solved on the scores that occur, of either sign, and how often each does, and written from a table."""
    z = (torch.randn(6, 20_001, generator=torch.Generator().manual_seed(0)) * deviation + shift).bfloat16()
    z[1, 3:9000] = -torch.inf
    z[2], z[3] = z[2].abs(), -z[3].abs()
    z[4] = shift  # one score
    z[5, ::2], z[5, 1::2] = 1e-30, -1e-30  # two, of hardly any size
    if deviation == 0.3:  # else some rows of some maps are listed
        assert kernels.entmax_supports(z, 1.3, 1 / 0.3).crowded.all()
    y, results = torch.tensor([0, 9500, 20_000, 5, 7, 8]), []
    for impl, dtype in (("cpp", torch.bfloat16), ("torch", torch.float64)):
        leaf = z.to(dtype).requires_grad_()
        loss = LOSSES[name](leaf, y, reduction="none", impl=impl)
        results.append((loss.detach(), *torch.autograd.grad(loss.sum(), leaf)))
    (loss, slope), (expected_loss, expected_slope) = results
    torch.testing.assert_close(loss.double(), expected_loss, atol=1e-5, rtol=2e-6)
    # alpha-ReLU's weights are not bounded by one.
    torch.testing.assert_close(
        slope.double(), expected_slope, atol=WEIGHT[torch.bfloat16], rtol=torch.finfo(torch.bfloat16).eps
    )


@pytest.mark.parametrize("num_classes", [30, 2000])
@pytest.mark.parametrize("scale", [0.05, 3.0])
@pytest.mark.parametrize("loss", [linear_entmax_loss, lambda *a, **k: linear_alpha_relu_loss(*a, 1.5, 0.6, **k)])
def test_fused_losses_are_those_of_the_specification(num_classes, scale, loss):
    hidden, weight, y = scores(5, 16, scale), scores(num_classes, 16, 1.0), torch.arange(5)
    results = []
    for impl, dtype in (("cpp", torch.float32), ("torch", torch.float64)):
        leaves = [tensor.to(dtype).requires_grad_() for tensor in (hidden, weight)]
        value = loss(*leaves, y, impl=impl, chunk_size=3)
        results.append((value.detach(), *torch.autograd.grad(value, leaves)))
    for actual, expected in zip(*results):
        torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-5)


def test_a_row_that_is_mostly_support_leaves_the_others_listed():
    z = scores(3, 8192, 10.0)
    z[1] = 0.5
    found = kernels.entmax_supports(z, 1.5, 2.0)
    assert found.crowded.tolist() == [False, True, False]
    close(found.p.sum(1), torch.tensor([1.0, 0.0, 1.0]), 1e-6)
    expected = entmax_by_bisection(z, 1.5)[[0, 2]]
    close(expected.gather(1, found.columns[[0, 2]]), found.p[[0, 2]], WEIGHT[torch.float32])


def test_the_conjugate_of_one_weight_is_exactly_zero_and_else_that_of_the_specification():
    z = scores(5, 6000, 2.0)
    z[0, 77] = 50.0
    for alpha in (1.1, 1.3, 1.5, 2.0):
        found = kernels.entmax_supports(z, alpha, 1 / (alpha - 1))
        exact = z.double() - z.double().amax(1, keepdim=True)
        p = entmax_by_bisection(z, alpha).double()
        expected = (p * exact).sum(1) - (p.pow(alpha).sum(1) - 1) / (alpha * (alpha - 1))
        assert float(found.conjugate[0]) == 0
        close(found.conjugate, expected, 2e-6)


def test_the_support_of_alpha_relu_is_all_that_lies_above_its_threshold():
    z = scores(4, 3001, 1.0)
    z[2, 17] = torch.nan
    columns, p, mass, crowded, _ = kernels.relu_supports(z, 1.5, 2.0, 1.25)
    assert not bool(crowded.any())
    for row in (0, 1, 3):
        u = (z[row].double() / 2 - 1.25).clamp(min=0)
        used = p[row] > 0
        assert torch.equal(columns[row, used], u.nonzero()[:, 0])
        close(p[row, used], u[u > 0] ** 2, 1e-6)
        close(mass[row], (u**3).sum(), 1e-6)
    assert bool(mass[2].isnan())
    assert bool(p[2, 0].isnan())
    z[3] = 0.0
    assert kernels.relu_supports(z, 1.5, 2.0, 1.25).crowded.tolist() == [False] * 4
    z[3] = 4.0
    assert kernels.relu_supports(z, 1.5, 2.0, 1.25).crowded.tolist() == [False, False, False, True]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("num_rows", [3, 3000])  # the larger result is written past the caches
def test_rows_are_written_with_weights_less_the_target(dtype, num_rows):
    length, generator = 4001, torch.Generator().manual_seed(0)
    columns = torch.stack([torch.randperm(length, generator=generator)[:40].sort()[0] for _ in range(num_rows)])
    values = torch.rand(num_rows, 40, generator=generator)
    values[1, 5:], columns[1, 5:] = 0, 0
    values[2, 3] = torch.nan
    target = torch.randint(length, (num_rows,), generator=generator)
    target[0] = columns[0, 7]
    factor = torch.randn(num_rows, generator=generator)
    factor[2] = 0.0
    out = kernels.write_rows(columns, values, length, dtype, target, factor)
    expected = torch.zeros(num_rows, length).scatter_add_(1, columns, values.nan_to_num(0))
    close(kernels.write_rows(columns, values.nan_to_num(0), length, dtype), expected.to(dtype), 0)
    expected = (expected.scatter_add_(1, target[:, None], -torch.ones(num_rows, 1)) * factor[:, None]).to(dtype)
    close(out, expected, torch.finfo(dtype).eps)
    assert bool((out[2] == 0).all())


def test_half_precision_gradients_overflow_and_underflow_as_torch_rounds_them():
    values = torch.tensor([[65519.0, 65520.0, 1e-8, 3e-8, 6.1e-5, 1.0, -70000.0, -3e-6]])
    columns = torch.arange(8)[None]
    for dtype in HALVES:
        assert torch.equal(kernels.write_rows(columns, values, 8, dtype), values.to(dtype))


def test_results_do_not_depend_on_the_number_of_threads():
    z, upstream = scores(40, 20_000, 2.0), scores(40, 20_000, 1.0)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            p = entmax15(z, impl="cpp")
            results.append((p, kernels.jacobian_product(p, upstream, 1.5), *kernels.entmax_supports(z, 1.5, 2.0)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*results))
