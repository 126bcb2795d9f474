"""Fused losses whose rows are screened equal those of float64 and of the whole product, in value and gradients."""

import shutil

import pytest
import torch

from hf_sparse.losses import (
    alpha_relu_loss,
    entmax_loss,
    linear_alpha_relu_loss,
    linear_entmax_loss,
    linear_sparsemax_loss,
)
from hf_sparse.losses.linear import _alpha_relu, _entmax, _screen

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)
NUM_ROWS, WIDTH, NUM_CLASSES = 80, 48, 4000


@pytest.fixture
def screened(monkeypatch):
    """Screens of small layers, on any CPU; the numbers of rows that each call solved, None where it could not."""
    solved = []
    original = _screen.RowScreen.candidates

    def candidates(self, hidden):
        found = original(self, hidden)
        solved.append(None if found is None else len(hidden))
        return found

    monkeypatch.setattr(_screen, "_FEWEST_WEIGHTS", 1)
    monkeypatch.setattr(_screen, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(_screen, "_MEAN_PART", 32)
    monkeypatch.setattr(_alpha_relu, "_ROWS_OF_A_SCREEN", 50)
    monkeypatch.setattr(_screen, "bfloat16_is_fast", lambda: True)
    monkeypatch.setattr(_screen.RowScreen, "candidates", candidates)
    return solved


def layer(size=1.0):
    generator = torch.Generator().manual_seed(3)
    hidden = size * torch.randn(NUM_ROWS, WIDTH, generator=generator)
    weight = torch.randn(NUM_CLASSES, WIDTH, generator=generator)
    bias = 0.3 * torch.randn(NUM_CLASSES, generator=generator)
    y = (hidden @ weight.T + 3 * torch.randn(NUM_ROWS, NUM_CLASSES, generator=generator)).argmax(-1)
    y[[3, 70]] = -100
    return hidden, weight, bias, y


def value_and_gradients(loss, *tensors):
    leaves = [x.clone().requires_grad_() for x in tensors]
    value = loss(*leaves)
    weights = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).view(value.shape)
    return value.detach(), *torch.autograd.grad((value * weights).sum(), leaves)


OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.5},
    "negative scale": {"scale": -0.7},
    "smoothing": {"label_smoothing": 0.1},
    "none": {"reduction": "none"},
    "num_items": {"num_items": 7},
    "chunks": {"chunk_size": 13},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("alpha", [1.1, 1.3, 1.5, 2.0])
def test_value_and_gradients_are_those_of_float64(alpha, options, screened):
    hidden, weight, bias, y = layer(4.0)
    others = {name: value for name, value in options.items() if name not in ("scale", "chunk_size")}

    def two_steps(h, w, b):
        return entmax_loss(options.get("scale", 1.0) * (h @ w.T + b), y, alpha, **others)

    found = value_and_gradients(lambda h, w, b: linear_entmax_loss(h, w, y, alpha, b, **options), hidden, weight, bias)
    assert screened
    assert None not in screened
    expected = value_and_gradients(two_steps, hidden.double(), weight.double(), bias.double())
    unfused = value_and_gradients(two_steps, hidden, weight, bias)
    for own, exact, other in zip(found, expected, unfused):
        assert own.dtype == torch.float32
        # A logit is as exact as one dot product in float32.
        rounding = 1.5 * float((other - exact).abs().max()) + 1e-6 * float(exact.abs().max())
        assert float((own - exact).abs().max()) <= rounding


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("alpha", "tau"), [(1.2, 18.0), (1.5, 45.0), (2.0, 90.0)])
def test_alpha_relu_is_that_of_float64(alpha, tau, options, screened):
    hidden, weight, bias, y = layer(4.0)
    others = {name: value for name, value in options.items() if name not in ("scale", "chunk_size")}

    def two_steps(h, w, b):
        return alpha_relu_loss(options.get("scale", 1.0) * (h @ w.T + b), y, alpha, tau, **others)

    def fused(h, w, b):
        return linear_alpha_relu_loss(h, w, y, alpha, tau, b, **options)

    found, unfused = (value_and_gradients(loss, hidden, weight, bias) for loss in (fused, two_steps))
    assert screened == ([] if "chunk_size" in options else [50, NUM_ROWS - 52])  # which counts classes here
    expected = value_and_gradients(two_steps, hidden.double(), weight.double(), bias.double())
    for own, exact, other in zip(found, expected, unfused):
        rounding = 1.5 * float((other - exact).abs().max()) + 1e-6 * float(exact.abs().max())
        assert float((own - exact).abs().max()) <= rounding


def test_alpha_relu_with_many_weights_is_multiplied_whole(screened):
    hidden, weight, _, y = layer(4.0)
    expected = alpha_relu_loss(hidden @ weight.T, y, 1.5, -50.0)
    torch.testing.assert_close(linear_alpha_relu_loss(hidden, weight, y, 1.5, -50.0), expected)
    assert screened == []
    hidden[50:] *= 20
    expected = alpha_relu_loss(hidden @ weight.T, y, 1.5, 45.0)
    torch.testing.assert_close(linear_alpha_relu_loss(hidden, weight, y, 1.5, 45.0), expected)
    assert screened == [None]


def test_rows_that_are_not_sparse_are_multiplied_whole(screened):
    hidden, weight, _, y = layer(0.01)
    loss = linear_entmax_loss(hidden, weight, y, 1.5)
    assert screened == []
    torch.testing.assert_close(loss, entmax_loss(hidden @ weight.T, y, 1.5))


def test_a_run_of_crowded_rows_ends_the_screen_of_a_call(screened):
    hidden, weight, _, y = layer(3.0)
    hidden[50:] *= 0.01
    loss = linear_entmax_loss(hidden, weight, y, 1.5, chunk_size=10)
    assert screened == [10, 10, 10, None]
    torch.testing.assert_close(loss, entmax_loss(hidden @ weight.T, y, 1.5))


def test_zero_losses_are_zero(screened):
    weight = torch.cat([20 * torch.eye(WIDTH), torch.zeros(NUM_CLASSES - WIDTH, WIDTH)])
    y = torch.arange(NUM_ROWS) % WIDTH
    losses = linear_sparsemax_loss(torch.eye(WIDTH)[y], weight, y, reduction="none")
    assert screened == [NUM_ROWS - _screen.PROBED_ROWS]
    assert bool((losses == 0).all())


def test_other_dtypes_softcaps_and_strides_are_not_screened(screened):
    hidden, weight, _, y = layer(3.0)
    linear_entmax_loss(hidden.bfloat16(), weight.bfloat16(), y)
    linear_entmax_loss(hidden.double(), weight.double(), y)
    linear_entmax_loss(hidden, weight, y, softcap=30.0)
    linear_entmax_loss(hidden, weight.T.contiguous().T, y)
    linear_entmax_loss(hidden, weight, y, impl="torch")
    linear_entmax_loss(hidden, weight, y, 1.0)
    assert screened == []
    for dtype in (torch.float32, torch.float64):
        head = _entmax.LinearHead(torch.zeros(NUM_CLASSES, WIDTH, dtype=dtype), None, 1.0, None)
        assert (_screen.RowScreen.of(head, 1.0, 1.5) is not None) == (dtype == torch.float32)


def test_hidden_states_and_a_bias_with_gaps_in_memory_are_screened(screened):
    hidden, weight, bias, y = layer(4.0)
    y[y < 0] = 0  # no row is left out, so none is copied
    apart = torch.randn(NUM_ROWS, 2 * WIDTH)[:, ::2].copy_(hidden), torch.zeros(NUM_CLASSES, 2)[:, 0].copy_(bias)
    losses = linear_entmax_loss(apart[0], weight, y, 1.5, apart[1], reduction="none")
    assert screened == [NUM_ROWS - _screen.PROBED_ROWS]
    expected = entmax_loss(hidden @ weight.T + bias, y, 1.5, reduction="none")
    torch.testing.assert_close(losses, expected, atol=1e-4, rtol=1e-5)


def test_weights_that_are_not_finite_are_not_screened(screened):
    hidden, weight, _, y = layer(3.0)
    weight[7, 3] = torch.nan
    assert linear_entmax_loss(hidden, weight, y).isnan()
    assert linear_alpha_relu_loss(hidden, weight, y, 1.5, 45.0).isnan()
    assert screened == []


def test_not_finite_rows_give_what_the_whole_product_gives(screened):
    hidden, weight, _, y = layer(3.0)
    hidden[60, 3] = torch.nan
    loss = linear_entmax_loss(hidden, weight, y, reduction="none")
    assert screened == [None]
    assert loss.isnan().nonzero().tolist() == [[60]]


def test_small_layers_few_rows_and_slow_bfloat16_are_not_screened(monkeypatch):
    head = _entmax.LinearHead(torch.zeros(1 << 14, 256), None, 1.0, None)
    monkeypatch.setattr(_screen, "bfloat16_is_fast", lambda: True)
    assert _screen.may_be_screened(head, torch.zeros(384, 256))
    assert not _screen.may_be_screened(head, torch.zeros(383, 256))
    small = _entmax.LinearHead(torch.zeros(1 << 14, 255), None, 1.0, None)
    assert not _screen.may_be_screened(small, torch.zeros(384, 255))
    monkeypatch.setattr(_screen, "bfloat16_is_fast", lambda: False)
    assert not _screen.may_be_screened(head, torch.zeros(384, 256))
