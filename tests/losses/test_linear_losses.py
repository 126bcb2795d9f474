"""The fused losses equal the linear layer followed by the loss, in value and in every gradient."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_sparse.losses import (
    alpha_relu_loss,
    entmax_loss,
    linear_alpha_relu_loss,
    linear_entmax_loss,
    linear_fenchel_young_loss,
    linear_sparsemax_loss,
    sparsemax_loss,
)
from hf_sparse.losses.linear import _alpha_relu
from hf_sparse.losses.linear._tiles import SparseEntries, gather_sum

FAMILY = [
    (lambda *a, **o: linear_entmax_loss(*a[:3], 1.3, *a[3:], **o), lambda z, y, **o: entmax_loss(z, y, 1.3, **o)),
    (linear_entmax_loss_15 := lambda *a, **o: linear_entmax_loss(*a[:3], 1.5, *a[3:], **o), entmax_loss),
    (linear_sparsemax_loss, sparsemax_loss),
    (
        lambda *a, **o: linear_alpha_relu_loss(*a[:3], 1.5, 2.0, *a[3:], **o),
        lambda z, y, **o: alpha_relu_loss(z, y, 1.5, 2.0, **o),
    ),
]
IDS = ["entmax 1.3", "entmax 1.5", "sparsemax", "alpha-ReLU"]
N, D = 40, 24


def layer(num_classes, std=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(num_classes)
    hidden = std * torch.randn(N, D, generator=generator)
    weight = 0.5 * torch.randn(num_classes, D, generator=generator)
    bias = 0.3 * torch.randn(num_classes, generator=generator)
    y = torch.randint(num_classes, (N,), generator=generator)
    y[[3, 17]] = -100
    return hidden.to(dtype), weight.to(dtype), bias.to(dtype), y


def value_and_gradients(loss, *tensors):
    tensors = [tensor.clone().requires_grad_() for tensor in tensors]
    value = loss(*tensors)
    weights = torch.rand(value.shape, generator=torch.Generator().manual_seed(1), dtype=value.dtype)
    return value.detach(), *torch.autograd.grad((value * weights).sum(), tensors)


def two_steps(loss, y, scale=1.0, softcap=None, **options):
    def step(hidden, weight, bias):
        z = scale * (hidden @ weight.t() + bias)
        z = z if softcap is None else softcap * torch.tanh(z / softcap)
        return loss(z, y, **options)

    return step


def assert_equal_to(found, expected, relative=1e-5):
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert (mine - theirs).abs().max() <= relative * theirs.abs().max()


class _Allocations(TorchDispatchMode):
    """The sizes of the tensors that are made without values inside the block."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.new_empty.default:
            self.seen.append(output.numel())
        return output


@pytest.mark.parametrize(("fused", "loss"), FAMILY, ids=IDS)
@pytest.mark.parametrize("std", [0.02, 1.0, 4.0])
@pytest.mark.parametrize("num_classes", [150, 3000])
def test_value_and_gradients_equal_the_two_steps(fused, loss, num_classes, std):
    hidden, weight, bias, y = layer(num_classes, std)
    found = value_and_gradients(lambda h, w, b: fused(h, w, y, b), hidden, weight, bias)
    assert_equal_to(found, value_and_gradients(two_steps(loss, y), hidden, weight, bias))


OPTIONS = [
    {"scale": 0.5},
    {"softcap": 4.0},
    {"scale": 3.0, "softcap": 5.0},
    {"label_smoothing": 0.1},
    {"label_smoothing": 0.1, "scale": 0.7},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"num_items": 100},
    {"ignore_index": 5},
]


@pytest.mark.parametrize(("fused", "loss"), FAMILY, ids=IDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("std", [0.02, 2.0])
def test_options_equal_the_two_steps(fused, loss, std, options):
    hidden, weight, bias, y = layer(1500, std)
    y = y.masked_fill(y == -100, options.get("ignore_index", -100))
    found = value_and_gradients(lambda h, w, b: fused(h, w, y, b, **options), hidden, weight, bias)
    assert_equal_to(found, value_and_gradients(two_steps(loss, y, **options), hidden, weight, bias))
    plain = value_and_gradients(lambda h, w, b: fused(h, w, y.clamp(min=0), b), hidden, weight, bias)
    assert found[0].shape != plain[0].shape or (found[0] - plain[0]).abs() > 1e-4


@pytest.mark.parametrize("options", [{"scale": 0.5}, {"softcap": 8.0}, {"scale": 0.5, "softcap": 8.0}], ids=str)
def test_scale_and_softcap_of_alpha_relu_with_few_weights(options):
    hidden, weight, bias, y = layer(1500)
    z = two_steps(lambda z, _: z, y, **options)(hidden, weight, bias)
    tau = float(z.quantile(0.995)) / 2  # one weight in 200: listed, not multiplied densely
    found = value_and_gradients(
        lambda h, w, b: linear_alpha_relu_loss(h, w, y, 1.5, tau, b, **options), hidden, weight, bias
    )
    expected = value_and_gradients(
        two_steps(lambda z, y: alpha_relu_loss(z, y, 1.5, tau), y, **options), hidden, weight, bias
    )
    assert_equal_to(found, expected)


@pytest.mark.parametrize("wide", [[], [20]], ids=["all rows are listed", "one row cannot be"])
def test_blocks_of_rows_and_classes_of_alpha_relu_with_few_weights(monkeypatch, wide):
    monkeypatch.setattr(_alpha_relu, "_ROWS_PER_PASS", 15)
    hidden, weight, bias, y = layer(2500)
    tau = float((hidden @ weight.t() + bias).quantile(0.995)) / 2
    hidden[:, 0], weight[:, 0] = 0.0, 1.0
    hidden[wide, 0] = 10 * tau
    found = value_and_gradients(
        lambda h, w, b: linear_alpha_relu_loss(h, w, y, 1.5, tau, b, chunk_size=1100), hidden, weight, bias
    )
    expected = value_and_gradients(two_steps(lambda z, y: alpha_relu_loss(z, y, 1.5, tau), y), hidden, weight, bias)
    assert_equal_to(found, expected)


@pytest.mark.parametrize(("fused", "loss"), FAMILY, ids=IDS)
@pytest.mark.parametrize("chunk_size", [1, 7, 64])
def test_chunks_change_nothing(fused, loss, chunk_size):
    hidden, weight, bias, y = layer(1100)
    found = value_and_gradients(lambda h, w, b: fused(h, w, y, b, chunk_size=chunk_size), hidden, weight, bias)
    assert_equal_to(found, value_and_gradients(lambda h, w, b: fused(h, w, y, b), hidden, weight, bias), 2e-6)


@pytest.mark.parametrize(("fused", "loss"), FAMILY, ids=IDS)
def test_short_supports_and_dense_chunks_in_one_batch(fused, loss):
    hidden, weight, bias, y = layer(1100, 3.0)
    hidden[20:] *= 1e-3
    bias += 1.0  # at tau = 2 every class of alpha-ReLU is near the threshold
    found = value_and_gradients(lambda h, w, b: fused(h, w, y, b, chunk_size=20), hidden, weight, bias)
    assert_equal_to(found, value_and_gradients(two_steps(loss, y), hidden, weight, bias))


@pytest.mark.parametrize("impl", ["auto", "torch"])
@pytest.mark.parametrize("options", [{}, {"softcap": 4.0}, {"label_smoothing": 0.1}, {"chunk_size": 16}])
@pytest.mark.parametrize(("fused", "loss"), FAMILY, ids=IDS)
def test_rows_with_many_weights_among_others(fused, loss, options, impl):
    hidden, weight, bias, y = layer(4000, 3.0)
    hidden[::5] *= 1e-3
    bias += 1.0
    bias[:3000] -= 0.3
    found = value_and_gradients(lambda h, w, b: fused(h, w, y, b, impl=impl, **options), hidden, weight, bias)
    of_both = {name: value for name, value in options.items() if name != "chunk_size"}
    assert_equal_to(found, value_and_gradients(two_steps(loss, y, **of_both), hidden, weight, bias))


@pytest.mark.parametrize("chunk_size", [10, 100])
def test_only_the_logits_of_rows_with_many_weights_are_computed_again(chunk_size):
    hidden, weight, _, y = layer(2000, 6.0)
    hidden[[0, 21, 22, 39]] *= 1e-3
    loss = linear_entmax_loss(hidden.requires_grad_(), weight, y, chunk_size=chunk_size)
    with _Allocations() as made:
        loss.backward()
    assert max(made.seen) == 4 * 2000


@pytest.mark.parametrize(("fused", "loss"), FAMILY, ids=IDS)
def test_float64_derivatives(fused, loss):
    hidden, weight, bias, y = layer(1030, 3.0, torch.float64)
    part = weight[:6].clone()  # gradcheck moves these six classes only

    def move(hidden, part, bias):
        full = torch.cat([part, weight[6:] * 1e-3])
        return fused(hidden, full, y[:3] % 6, torch.cat([bias, weight.new_full((1024,), -30.0)]), reduction="none")

    inputs = [tensor.clone().requires_grad_() for tensor in (hidden[:3, :], part, bias[:6])]
    assert torch.autograd.gradcheck(move, inputs, fast_mode=True)


@pytest.mark.parametrize(("fused", "loss"), FAMILY, ids=IDS)
@pytest.mark.parametrize("std", [0.02, 2.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_added_up_in_float32(fused, loss, dtype, std):
    hidden, weight, bias, y = layer(1500, std, dtype)
    found = value_and_gradients(lambda h, w, b: fused(h, w, y, b), hidden, weight, bias)
    assert found[0].dtype == torch.float32

    def half_logits(hidden, weight, bias):  # gradients in float32, logits rounded as a half-precision layer rounds
        z = hidden @ weight.t() + bias
        with torch.no_grad():
            rounded = torch.addmm(bias.to(dtype), hidden.to(dtype), weight.to(dtype).t()).float()
        return loss(z + (rounded - z).detach(), y)

    expected = value_and_gradients(half_logits, hidden.float(), weight.float(), bias.float())
    torch.testing.assert_close(found[0], expected[0])
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        assert mine.dtype == dtype
        assert (mine - theirs).abs().max() <= 4 * torch.finfo(dtype).eps * theirs.abs().max()


@pytest.mark.parametrize(("fused", "loss"), FAMILY, ids=IDS)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
def test_autocast_rounds_the_layer_and_nothing_else(fused, loss, label_smoothing):
    hidden, weight, bias, y = layer(1500, 2.0)

    def cast_by_torch(hidden, weight, bias):
        with torch.autocast("cpu", torch.bfloat16):
            return fused(hidden, weight, y, bias, label_smoothing=label_smoothing)

    def cast_by_hand(hidden, weight, bias):
        return fused(hidden.bfloat16(), weight.bfloat16(), y, bias.bfloat16(), label_smoothing=label_smoothing)

    found = value_and_gradients(cast_by_torch, hidden, weight, bias)
    assert all(tensor.dtype == torch.float32 for tensor in found)
    assert_equal_to(found, value_and_gradients(cast_by_hand, hidden, weight, bias))


@pytest.mark.parametrize(("fused", "loss"), FAMILY, ids=IDS)
def test_leading_dimensions_and_no_bias(fused, loss):
    hidden, weight, _, y = layer(200)
    flat = fused(hidden, weight, y, reduction="none")
    torch.testing.assert_close(fused(hidden.view(2, 20, D), weight, y.view(2, 20), reduction="none"), flat.view(2, 20))
    torch.testing.assert_close(flat, loss(hidden @ weight.t(), y, reduction="none"))


@pytest.mark.parametrize(("fused", "loss"), FAMILY, ids=IDS)
def test_all_targets_ignored_gives_zero_loss_and_zero_gradients(fused, loss):
    hidden, weight, bias, y = layer(200)
    found = value_and_gradients(lambda h, w, b: fused(h, w, torch.full_like(y, -100), b), hidden, weight, bias)
    assert all(not tensor.any() for tensor in found)


def test_ignored_rows_may_hold_nan():
    hidden, weight, bias, y = layer(200)
    hidden[3] = torch.nan
    found = value_and_gradients(lambda h, w, b: linear_entmax_loss_15(h, w, y, b), hidden, weight, bias)
    assert not any(tensor.isnan().any() for tensor in found)


def test_only_the_wanted_gradients_are_computed():
    hidden, weight, _, y = layer(1500)
    for wanted in ((True, False), (False, True)):
        inputs = [t.clone().requires_grad_(w) for t, w in zip((hidden, weight), wanted)]
        linear_entmax_loss(*inputs, y).backward()
        assert [t.grad is not None for t in inputs] == list(wanted)


def test_the_backward_pass_of_alpha_relu_holds_no_more_logits_than_asked_for():
    hidden, weight, _, y = layer(2000)
    loss = linear_alpha_relu_loss(hidden.requires_grad_(), weight, y, 1.5, -1.0, chunk_size=10)
    with _Allocations() as made:
        loss.backward()
    assert max(made.seen) == 10 * int((y != -100).sum())


@pytest.mark.parametrize("alpha", [2.5, 8.0])
@pytest.mark.parametrize("std", [0.02, 2.0])
def test_value_and_gradients_of_an_alpha_above_two(alpha, std):
    hidden, weight, bias, y = layer(1500, std)
    found = value_and_gradients(lambda h, w, b: linear_entmax_loss(h, w, y, alpha, b), hidden, weight, bias)
    expected = value_and_gradients(two_steps(lambda z, y: entmax_loss(z, y, alpha), y), hidden, weight, bias)
    assert_equal_to(found, expected)


def test_alpha_one_is_cross_entropy():
    hidden, weight, _, y = layer(1500)
    expected = torch.nn.functional.cross_entropy(hidden @ weight.t(), y)
    torch.testing.assert_close(linear_entmax_loss(hidden, weight, y, 1.0), expected)


def test_second_derivatives_are_refused():
    hidden, weight, _, y = layer(200)
    hidden.requires_grad_()
    with pytest.raises(RuntimeError, match="fused linear losses have no second derivative"):
        torch.autograd.grad(linear_entmax_loss(hidden, weight, y), hidden, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gather_sum_is_the_sparse_product(dtype):
    generator = torch.Generator().manual_seed(0)
    row, column = torch.randint(9, (3000,), generator=generator), torch.randint(50, (3000,), generator=generator)
    row[row == 4] = 5  # an empty row, and one with more entries than one run
    table = torch.randn(50, 3, generator=generator).to(dtype)
    value = torch.randn(3000, generator=generator, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    dense = torch.zeros(9, 50, dtype=torch.float64).index_put_((row, column), value.double(), accumulate=True)
    product = gather_sum(SparseEntries(row, column, value), table, 9, value.dtype)
    torch.testing.assert_close(product.double(), dense @ table.double(), atol=1e-5, rtol=1e-5)


def test_fifty_thousand_equal_terms_do_not_drift():
    count = 50_000
    entries = SparseEntries(
        torch.zeros(count, dtype=torch.long), torch.zeros(count, dtype=torch.long), torch.full((count,), 0.1)
    )
    total = gather_sum(entries, torch.full((1, 1), 0.3), 1, torch.float32)
    assert total.item() == pytest.approx(count * 0.03, rel=1e-5)


def test_the_gradient_of_a_bias_does_not_drift():
    count, bias = 50_000, torch.zeros(4, requires_grad=True)
    y = torch.zeros(count, dtype=torch.long)
    loss = linear_sparsemax_loss(torch.zeros(count, 1), torch.zeros(4, 1), y, bias, reduction="none")
    (0.1 * loss).sum().backward()
    expected = torch.tensor([-0.75, 0.25, 0.25, 0.25]) * 0.1 * count
    torch.testing.assert_close(bias.grad, expected, atol=0, rtol=2e-6)


@pytest.mark.parametrize(("fused", "loss"), FAMILY, ids=IDS)
def test_misuse_is_refused_in_words(fused, loss):
    hidden, weight, bias, y = layer(20)
    y = y.clamp(0, 19)
    refused = [
        (ValueError, "reduction must be one of", lambda: fused(hidden, weight, y, reduction="avg")),
        (ValueError, "num_items divides the sum", lambda: fused(hidden, weight, y, reduction="none", num_items=3)),
        (ValueError, r"label_smoothing must be in \[0, 1\]", lambda: fused(hidden, weight, y, label_smoothing=-0.1)),
        (
            ValueError,
            "label_smoothing of soft-capped logits",
            lambda: fused(hidden, weight, y, label_smoothing=0.1, softcap=3.0),
        ),
        (
            ValueError,
            "softcap must be a number from 0.0001 to 1000000, or None, was 0",
            lambda: fused(hidden, weight, y, softcap=0),
        ),
        (
            ValueError,
            "scale must be a number from -1000000 to 1000000, was inf",
            lambda: fused(hidden, weight, y, scale=float("inf")),
        ),
        (ValueError, "chunk_size must be at least 1, or None, was 0", lambda: fused(hidden, weight, y, chunk_size=0)),
        (
            TypeError,
            "chunk_size must be a whole number, or None, was True",
            lambda: fused(hidden, weight, y, chunk_size=True),
        ),
        (TypeError, "must hold class indices .* was torch.float32", lambda: fused(hidden, weight, hidden)),
        (ValueError, r"must agree, were \(40, 24\) and \(20, 23\)", lambda: fused(hidden, weight[:, 1:], y)),
        (
            ValueError,
            r"bias must be of shape \(20,\), one entry per class, was \(3,\)",
            lambda: fused(hidden, weight, y, bias[:3]),
        ),
        (TypeError, "bias must be a tensor, was ", lambda: fused(hidden, weight, y, bias.tolist())),
        (ValueError, r"must agree, were \(40, 20\) and \(39,\)", lambda: fused(hidden, weight, y[1:])),
        (IndexError, r"target must be in \[0, 20\)", lambda: fused(hidden, weight, y + 20)),
    ]
    for error, words, call in refused:
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("options", [{"softcap": 1e-4}, {"softcap": 1e6}, {"scale": -1e6}, {"scale": 1e6}], ids=str)
def test_options_at_the_ends_of_their_ranges_are_taken(options):
    hidden, weight, bias, y = layer(200)
    found, expected = linear_entmax_loss(hidden, weight, y, 1.5, bias, **options), two_steps(entmax_loss, y, **options)
    torch.testing.assert_close(found, expected(hidden, weight, bias))


def test_settings_are_checked_and_change_the_loss():
    hidden, weight, _, y = layer(200)
    with pytest.raises(ValueError, match=r"alpha must be a number from 1 to 64, was 0.5"):
        linear_entmax_loss(hidden, weight, y, 0.5)
    with pytest.raises(TypeError, match=r"alpha of a fused loss must be a number, was a tensor of shape \(40, 1\)"):
        linear_entmax_loss(hidden, weight, y, torch.full((40, 1), 1.5))
    with pytest.raises(ValueError, match=r"alpha must be a number from 1.001 to 5, was 1.0"):
        linear_alpha_relu_loss(hidden, weight, y, 1.0, 0.0)
    with pytest.raises(ValueError, match='tau must be a number from -1000000 to 1000000, was "auto"'):
        linear_alpha_relu_loss(hidden, weight, y, 1.5, "auto")
    assert linear_entmax_loss(hidden, weight, y, 1.5) != linear_entmax_loss(hidden, weight, y, 1.6)
    losses = [linear_alpha_relu_loss(hidden, weight, y, alpha, tau) for alpha, tau in ((1.5, 1), (1.6, 1), (1.5, 2))]
    assert len(set(map(float, losses))) == 3


def test_a_map_without_a_fused_loss_is_refused():
    hidden, weight, _, y = layer(20)
    with pytest.raises(
        ValueError, match="'sparsegen_lin' has no fused loss; the maps that have one are 'alpha_relu', "
    ):
        linear_fenchel_young_loss(hidden, weight, y, "sparsegen_lin")


def test_an_integer_weight_is_refused():
    weight = torch.tensor([[3, 0], [0, 3], [1, 1]])
    with pytest.raises(TypeError, match=r"weight must be floating-point, was torch.int64"):
        linear_entmax_loss(torch.randn(3, 2), weight, torch.tensor([0, 1, 2]))
