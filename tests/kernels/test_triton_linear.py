"""Fused linear losses by the Triton kernels give what the layer and the loss give in float64, listed or dense."""

import json
from pathlib import Path

import pytest
import torch

from hf_sparse.functional import entmax15
from hf_sparse.kernels import Listing, triton_list_support, triton_multiply
from hf_sparse.losses import (
    alpha_relu_loss,
    entmax_loss,
    linear_alpha_relu_loss,
    linear_entmax_loss,
    linear_sparsemax_loss,
)
from hf_sparse.losses.linear import _triton as linear_triton
from tests.kernels.devices import DEVICE, INTERPRETED, needs_triton
from tests.tolerances import GRADIENT

pytestmark = needs_triton
N, D, V = 6, 12, 150
FUSED = {
    "entmax 1.3": lambda *tensors, **options: linear_entmax_loss(*tensors, 1.3, **options),
    "entmax 1.5": linear_entmax_loss,
    "sparsemax": linear_sparsemax_loss,
    "alpha-ReLU 1.5": lambda *tensors, **options: linear_alpha_relu_loss(*tensors, 1.5, 10.0, **options),
    "alpha-ReLU 1.9": lambda *tensors, **options: linear_alpha_relu_loss(*tensors, 1.9, 20.0, **options),
}
LOSSES = {
    "entmax 1.3": lambda z, y, **options: entmax_loss(z, y, 1.3, **options),
    "entmax 1.5": entmax_loss,
    "sparsemax": lambda z, y, **options: entmax_loss(z, y, 2.0, **options),
    "alpha-ReLU 1.5": lambda z, y, **options: alpha_relu_loss(z, y, 1.5, 10.0, **options),
    "alpha-ReLU 1.9": lambda z, y, **options: alpha_relu_loss(z, y, 1.9, 20.0, **options),
}
# Logits this large leave supports of a few classes; these small ones, of all for entmax and of none for alpha-ReLU.
LISTED, DENSE = 3.0, 0.01
FEWEST_LISTED = 8


def layer(std, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = ((N, D), (V, D), (V,))
    hidden, weight, bias = (torch.randn(shape, generator=generator).to(DEVICE) for shape in shapes)
    y = torch.arange(N, device=DEVICE) * 10
    y[3] = -100
    return (hidden * std).to(dtype), weight.to(dtype), (bias * 0.03).to(dtype), y


def value_and_gradients(loss, *tensors):
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    value = loss(*tensors)
    # Rows weigh differently, one of them nothing.
    weights = torch.linspace(1, 0, value.numel(), device=value.device, dtype=value.dtype)
    return value.detach(), *torch.autograd.grad((value.view(-1) * weights).sum(), tensors)


def two_steps(loss, y, scale=1.0, softcap=None, label_smoothing=0.0):
    def step(hidden, weight, bias):
        z = scale * (hidden @ weight.T + bias)
        z = z if softcap is None else softcap * torch.tanh(z / softcap)
        return loss(z, y, reduction="none", label_smoothing=label_smoothing, impl="torch")

    return step


@pytest.fixture(autouse=True)
def dense_tiles(monkeypatch):
    """The number of tiles that the forward did not list, of every call, as a list that fills.

    Of so few classes an eighth is worth listing.
    """
    monkeypatch.setattr(linear_triton, "_LISTED", FEWEST_LISTED)
    found = []
    forward = linear_triton._forward

    def noted(*arguments, **options):
        tiled = forward(*arguments, **options)
        found.append(len(tiled.dense))
        return tiled

    monkeypatch.setattr(linear_triton, "_forward", noted)
    return found


SEVERAL = ("entmax 1.5", "alpha-ReLU 1.5")
OPTIONS = {
    **{name: (name, {}) for name in FUSED},
    **{f"{name}, scale and softcap": (name, {"scale": 1.4, "softcap": 30.0}) for name in SEVERAL},
    **{f"{name}, label smoothing": (name, {"label_smoothing": 0.1, "scale": 0.7}) for name in SEVERAL},
}
# The rows of the table of fused losses in docs/gpu.md; see tests/kernels/capabilities.py.
CASES = {
    f"{case}, {kind}": (*options, std)
    for case, options in OPTIONS.items()
    for kind, std in (("large logits", LISTED), ("small logits", DENSE))
}


def errors(name, hidden, weight, bias, y, **options):
    """Errors of the losses and of each gradient, relative to the largest entry, against float64."""
    given = {key: options.pop(key) for key in ("chunk_size",) if key in options}
    fused = lambda h, w, b: FUSED[name](h, w, y, bias=b, reduction="none", impl="triton", **given, **options)  # noqa: E731
    found = value_and_gradients(fused, hidden, weight, bias)
    exact = (tensor.double() for tensor in (hidden, weight, bias))
    expected = value_and_gradients(two_steps(LOSSES[name], y, **options), *exact)
    assert all(tensor.dtype == torch.float32 for tensor in found)
    return {
        key: float((mine.double() - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))
        for key, mine, theirs in zip(("loss", "hidden", "weight", "bias"), found, expected)
    }


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients_are_those_of_the_two_steps_in_float64(case, dense_tiles):
    name, options, std = CASES[case]
    assert max(errors(name, *layer(std), **options).values()) <= GRADIENT[torch.float32]
    assert dense_tiles == [int(std == DENSE and "ReLU" not in name)]


def test_the_documented_cases_are_the_tested_ones():
    documented = json.loads((Path(__file__).parents[2] / "docs" / "gpu.json").read_text())
    assert documented["linear"].keys() == CASES.keys()


@pytest.mark.parametrize("name", SEVERAL)
def test_listed_and_dense_chunks_in_one_batch(name, dense_tiles):
    hidden, weight, bias, y = layer(10 * LISTED)  # half of the classes are above the threshold of alpha-ReLU
    hidden[4:] *= 1e-3
    assert max(errors(name, hidden, weight, bias, y, chunk_size=1).values()) <= GRADIENT[torch.float32]
    assert 0 < dense_tiles[0] < N - 1


@pytest.mark.parametrize(("dtype", "std"), [(torch.bfloat16, LISTED), (torch.float16, DENSE)], ids=str)
def test_half_precision_is_added_up_in_float32(dtype, std):
    hidden, weight, bias, y = layer(std, dtype)
    fused = lambda h, w, b: linear_entmax_loss(h, w, y, bias=b, impl="triton")  # noqa: E731
    found = value_and_gradients(fused, hidden, weight, bias)

    def half_logits(hidden, weight, bias):
        z = hidden @ weight.T + bias
        with torch.no_grad():
            rounded = torch.addmm(bias.to(dtype), hidden.to(dtype), weight.to(dtype).T).double()
        return entmax_loss(z + (rounded - z).detach(), y)

    expected = value_and_gradients(half_logits, *(tensor.double() for tensor in (hidden, weight, bias)))
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0].double(), expected[0], atol=1e-5, rtol=1e-5)
    for mine, theirs in zip(found[1:], expected[1:]):
        assert mine.dtype == dtype
        assert float((mine.double() - theirs).abs().max() / theirs.abs().max()) <= 4 * torch.finfo(dtype).eps


def test_a_nan_stays_in_its_row_and_shows_in_the_gradients():
    hidden, weight, _, y = layer(LISTED)
    hidden[2, 0] = torch.nan
    loss, of_hidden, of_weight = value_and_gradients(
        lambda h, w: linear_entmax_loss(h, w, y, reduction="none", impl="triton"), hidden, weight
    )
    assert loss.isnan().nonzero().tolist() == [[2]]
    assert of_hidden.isnan().any(-1).nonzero().tolist() == [[2]]
    assert bool(of_weight.isnan().any())


def test_what_is_kept_between_the_passes_does_not_grow_with_the_vocabulary():
    kept = []
    for num_classes in (75, 150):
        hidden, weight, _, y = layer(LISTED)
        hidden.requires_grad_()
        y = y % num_classes
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, sizes=sizes: sizes.append(x.numel()) or x, lambda x: x
        ):
            linear_entmax_loss(hidden, weight[:num_classes], y, impl="triton")
        kept.append(sum(sizes) - weight[:num_classes].numel())
    assert kept[1] < 1.5 * kept[0] < 8 * 75


def test_supports_that_span_blocks_are_listed_in_the_order_of_columns():
    z = torch.linspace(0, 3, 2100, device=DEVICE).sin()[None].repeat(3, 1)
    z[1] = 0.0
    listing = Listing.empty(2 * 2100, 2, z.device)
    p = entmax15(z.double(), impl="torch")
    for chunk, rows in enumerate((slice(0, 2), slice(2, 3))):
        triton_list_support(z[rows], listing, chunk, rows.start, 2099, 1.5, 2.0, None, None, 1.0)
    assert listing.sizes.tolist() == [-1, int((p[2] > 0).sum())]  # all of the second row are too many
    size = int(listing.sizes[1])
    assert torch.equal(listing.row[:size], torch.full_like(listing.row[:size], 2))
    assert torch.equal(listing.column[:size].long(), p[2].nonzero()[:, 0])
    torch.testing.assert_close(listing.value[:size].double(), p[2][p[2] > 0], atol=1e-6, rtol=0)


def test_a_product_sums_long_rows_in_runs_repeated_places_and_half_precision():
    generator = torch.Generator().manual_seed(0)
    row, column = (torch.randint(n, (900,), generator=generator) for n in (5, 50))
    row[row == 3] = 1  # an empty row, and one with more entries than one run
    value = torch.randn(900, generator=generator)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-2)):
        table = torch.randn(50, 20, generator=generator).to(dtype)
        dense = torch.zeros(5, 50, dtype=torch.float64).index_put_((row, column), value.double(), accumulate=True)
        entries = (x.to(DEVICE) for x in (row, column, value, table))
        product = triton_multiply(*entries, 5, dtype)
        assert product.dtype == dtype
        torch.testing.assert_close(product.double().cpu(), dense @ table.double(), atol=tolerance, rtol=tolerance)


def test_four_thousand_equal_terms_do_not_drift():
    nothing = torch.zeros(4_000, dtype=torch.int32, device=DEVICE)
    value, table = torch.full((4_000,), 0.1, device=DEVICE), torch.full((1, 1), 0.3, device=DEVICE)
    total = triton_multiply(nothing, nothing, value, table, 1, torch.float32)
    assert float(total) == pytest.approx(120.0, rel=1e-6)


def test_compiled_code_computes_the_fused_loss_outside_its_graphs():
    hidden, weight, _, y = layer(LISTED)
    loss = lambda h, w: linear_entmax_loss(h, w, y, impl="triton")  # noqa: E731
    eager = value_and_gradients(loss, hidden, weight)
    compiled = value_and_gradients(torch.compile(loss, backend="eager"), hidden, weight)
    assert all(torch.equal(*pair) for pair in zip(eager, compiled))


def test_auto_takes_the_kernels_where_maps_do(monkeypatch, dense_tiles):
    hidden, weight, _, y = layer(LISTED)
    if INTERPRETED:  # on the CPU, where auto does not take them by itself
        linear_entmax_loss(hidden, weight, y)
        assert dense_tiles == []
        monkeypatch.setattr("hf_sparse.losses.linear.chosen_for", lambda *arguments: "triton")
    linear_entmax_loss(hidden, weight, y)
    assert dense_tiles == [0]


def test_what_the_kernels_do_not_take_is_refused_by_name():
    hidden, weight, _, y = layer(LISTED)
    with pytest.raises(ValueError, match=r'impl="triton" takes alpha in \[1.1, 2.0\], was 1.0'):
        linear_entmax_loss(hidden, weight, y, 1.0, impl="triton")
    with pytest.raises(ValueError, match=r'impl="triton" takes scores of torch\.float32'):
        linear_entmax_loss(hidden.double(), weight.double(), y, impl="triton")
