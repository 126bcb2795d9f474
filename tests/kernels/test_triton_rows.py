"""The Triton row kernels give what torch gives in float64: maps, losses, gradients, on every kind of row."""

import pytest
import torch

from hf_sparse import kernels
from hf_sparse.functional import alpha_relu, entmax, entmax15
from hf_sparse.functional.newton import exponent_of
from hf_sparse.losses import alpha_relu_loss, entmax15_loss, entmax_loss, fenchel_young_loss
from tests.kernels.devices import DEVICE, INTERPRETED, needs_triton
from tests.reference import entmax_by_bisection
from tests.tolerances import GRADIENT, WEIGHT

pytestmark = needs_triton
# The interpreter cuts float32 off where a GPU rounds it to bfloat16.
ROUNDED = WEIGHT | {torch.bfloat16: WEIGHT[torch.bfloat16] * (2 if INTERPRETED else 1)}
SCALES = {"all": 1e-5, "many": 0.5, "several": 3.0, "one": 1e3}


def scores(num_rows, length, scale, dtype=torch.float32):
    z = torch.randn(num_rows, length, generator=torch.Generator().manual_seed(length)) * scale
    return z.to(DEVICE, dtype)


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual.double(), expected.double(), atol=tolerance, rtol=0, equal_nan=True)


@pytest.mark.parametrize("alpha", [1.1, 1.25, 4 / 3, 1.5, 1.7, 2.0])
def test_weights_are_those_of_bisection_for_supports_of_one_several_and_all(alpha):
    z = torch.cat([scores(1, 1100, scale) for scale in SCALES.values()])
    sizes = [int(size) for size in (entmax_by_bisection(z, alpha) > 0).sum(-1)]
    assert sizes[0] == 1100
    assert sizes[-1] == 1
    close(entmax(z, alpha, impl="triton"), entmax_by_bisection(z, alpha), WEIGHT[torch.float32])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_rows_are_computed_in_float32_and_rounded_once(dtype):
    z = scores(3, 90, 2.0, dtype)
    p = entmax15(z, impl="triton")
    assert p.dtype == dtype
    close(p, entmax_by_bisection(z, 1.5), ROUNDED[dtype])


@pytest.mark.parametrize("length", [1, 2, 17, 1024, 1025])
def test_rows_of_any_length(length):
    z = scores(2, length, 2.0)
    close(entmax(z, 1.3, impl="triton"), entmax_by_bisection(z, 1.3), WEIGHT[torch.float32])


def test_masked_entries_get_zero_masked_rows_vanish_and_nan_stays_in_its_row():
    z = scores(5, 70, 1.0)
    z[0], z[1, 3:], z[2, 69], z[3, 5] = -torch.inf, -torch.inf, torch.nan, torch.inf
    p = entmax15(z, impl="triton")
    assert bool((p[0] == 0).all())
    assert bool((p[1, 3:] == 0).all())
    assert bool(p[2:4].isnan().all())
    close(p[[1, 4]], entmax_by_bisection(z[[1, 4]], 1.5), WEIGHT[torch.float32])


def test_offsets_do_not_matter_and_any_axis_and_stride_will_do():
    z = (scores(6, 40, 30.0).double() + 1e6).float()
    close(entmax15(z, impl="triton"), entmax_by_bisection(z, 1.5), WEIGHT[torch.float32])
    assert torch.equal(entmax15(z.T, dim=0, impl="triton").T, entmax15(z, impl="triton"))
    assert torch.equal(entmax15(z[::2, 3:], impl="triton"), entmax15(z[::2, 3:].contiguous(), impl="triton"))
    assert entmax15(z[:0], impl="triton").shape == (0, 40)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.8, 2.0])
def test_gradients_of_the_map_are_those_of_torch_in_float64(alpha):
    z, upstream = scores(4, 60, 1.0), scores(4, 60, 0.5)
    z[0, 1:] = -torch.inf
    upstream[0, 1] = torch.inf  # off the support: it must not enter the mean

    def derivatives(dtype, impl):
        leaf = z.to(dtype).requires_grad_()
        (first,) = torch.autograd.grad(entmax(leaf, alpha, impl=impl), leaf, upstream.to(dtype), create_graph=True)
        (second,) = torch.autograd.grad(first[1:].square().sum(), leaf)
        return first.detach(), second[1:]

    for actual, expected in zip(derivatives(torch.float32, "triton"), derivatives(torch.float64, "torch")):
        close(actual, expected, GRADIENT[torch.float32])


def test_transforms_go_through_the_kernel():
    z = scores(3, 40, 1.0)
    mapped = torch.func.vmap(lambda row: entmax15(row, impl="triton"))(z)
    close(mapped, entmax_by_bisection(z, 1.5), WEIGHT[torch.float32])


LOSSES = {
    "entmax15": entmax15_loss,
    "entmax 1.3": lambda z, y, **options: entmax_loss(z, y, 1.3, **options),
    "sparsemax": lambda z, y, **options: entmax_loss(z, y, 2.0, **options),
    "alpha_relu": lambda z, y, **options: alpha_relu_loss(z, y, 1.5, 0.7, **options),
    "alpha_relu 1.9": lambda z, y, **options: alpha_relu_loss(z, y, 1.9, -0.3, **options),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("soft", [False, True])
def test_losses_and_their_derivatives_are_those_of_torch_in_float64(name, soft):
    z, y = scores(5, 50, 0.8), torch.tensor([-100, 1, 2, 3, 4], device=DEVICE)
    z[0, 7], z[1, 10:], z[2, 2] = torch.nan, -torch.inf, 20.0
    if soft:
        y = torch.zeros(5, 50, device=DEVICE)
        y[1:, 0], y[1:, 4] = 0.25, 0.75
    results = []
    for impl, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaf = z.to(dtype).requires_grad_()
        loss = LOSSES[name](leaf, y.to(dtype) if soft else y, reduction="none", impl=impl)
        (slope,) = torch.autograd.grad(loss.sum(), leaf, create_graph=True)
        (curvature,) = torch.autograd.grad((slope[3:] * 0.1).square().sum(), leaf)
        results.append((loss.detach(), slope.detach(), curvature[3:]))
    for actual, expected in zip(*results):
        torch.testing.assert_close(actual.double(), expected, atol=GRADIENT[torch.float32], rtol=1e-5)
    assert bool((results[0][1][0] == 0).all())


def test_a_loss_is_exactly_zero_where_the_target_leads_by_the_margin():
    z = torch.zeros(1, 30, device=DEVICE)
    z[0, 4] = 2.0
    assert float(entmax15_loss(z, torch.tensor([4], device=DEVICE), impl="triton")) == 0
    assert float(alpha_relu_loss(z, torch.tensor([4], device=DEVICE), 1.5, 0.0, impl="triton")) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_losses_of_half_precision_logits_have_gradients_of_their_dtype(dtype):
    z, y = scores(4, 90, 1.0, dtype), torch.arange(4, device=DEVICE)
    for loss in LOSSES.values():
        leaf, exact = z.clone().requires_grad_(), z.double().requires_grad_()
        ours, expected = loss(leaf, y, impl="triton"), loss(exact, y, impl="torch")
        torch.testing.assert_close(ours.double(), expected, atol=1e-5, rtol=1e-5)
        slopes = [torch.autograd.grad(*pair)[0] for pair in ((ours, leaf), (expected, exact))]
        assert slopes[0].dtype == dtype
        torch.testing.assert_close(slopes[0].double(), slopes[1], atol=ROUNDED[dtype], rtol=2 * ROUNDED[dtype])


def test_torch_compile_keeps_maps_and_losses_in_one_graph():
    z, y = scores(3, 30, 1.0), torch.arange(3, device=DEVICE)

    def objective(z):
        p = entmax15(z, impl="triton") + alpha_relu(z, 1.5, 0.3)
        return p.square().sum() + entmax15_loss(z, y, impl="triton") + alpha_relu_loss(z, y, 1.5, 0.3, impl="triton")

    slopes = []
    for function in (objective, torch.compile(objective, backend="aot_eager", fullgraph=True)):
        leaf = z.clone().requires_grad_()
        slopes.append(torch.autograd.grad(function(leaf), leaf)[0])
    assert torch.equal(*slopes)


@pytest.mark.skipif(INTERPRETED, reason="nothing has to wait for a CPU")
def test_no_loss_waits_for_the_gpu():
    z, y = scores(4, 300, 2.0).requires_grad_(), torch.tensor([0, 299, -100, 7], device=DEVICE)
    for loss in (entmax15_loss, lambda z, y, **options: alpha_relu_loss(z, y, 1.5, 1.0, **options)):
        expected = loss(z, y, impl="triton")  # compiles the kernels
        torch.cuda.set_sync_debug_mode("error")
        try:
            (slope,) = torch.autograd.grad(loss(z, y, impl="triton"), z)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(slope[2], torch.zeros_like(slope[2]))
        close(expected, loss(z.double(), y, impl="torch"), GRADIENT[torch.float32])


def test_what_the_kernels_do_not_take_is_refused_by_name():
    z, y = torch.zeros(2, 3, device=DEVICE), torch.tensor([0, 1], device=DEVICE)
    for z_bad, alpha, message in (
        (z.double(), 1.5, "takes scores of torch.float32"),
        (z, 1.05, r"takes alpha in \[1.1, 2.0\], was 1.05"),
        (z, torch.tensor(1.5, device=DEVICE), "takes one number for alpha, was a tensor"),
    ):
        with pytest.raises(ValueError, match=f'impl="triton" {message}'):
            entmax(z_bad, alpha, impl="triton")
    with pytest.raises(ValueError, match=r"impl=\"triton\" knows .*, not 'sparsegen_lin'"):
        fenchel_young_loss(z, y, "sparsegen_lin", impl="triton")


def test_the_operators_pass_torchs_own_checks():
    z, y = scores(3, 20, 1.0), torch.arange(3, device=DEVICE)
    p = kernels.triton_weights(z, 1.5, 2.0)
    solved = kernels.triton_solve(z, 1.3, exponent_of(1.3), None)
    grad = torch.ones(3, device=DEVICE)
    for operator, arguments in (
        (kernels.triton_weights, (z, 1.5, 2.0)),
        (kernels.triton_jacobian_product, (p, z, 1.5)),
        (kernels.triton_solve, (z, 1.3, exponent_of(1.3), None)),
        (kernels.triton_loss_gradients, (z, *solved, grad, y, 1.3, exponent_of(1.3))),
    ):
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
