"""Every option of the losses changes what it says it changes, and every misuse is refused in words."""

import pytest
import torch
import torch.nn.functional as F

from hf_sparse.losses import alpha_relu_loss, entmax15_loss, entmax_loss, fenchel_young_loss, softmax_loss

NAMES = ["alpha_relu", "entmax15", "softmax", "sparsemax"]
Z = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 3, 4, 0])


def loss(name, z, y, **options):
    settings = {"alpha": 1.5, "tau": 0.3} if name == "alpha_relu" else {}
    return fenchel_young_loss(z, y, name, **settings, **options)


@pytest.mark.parametrize("name", NAMES)
def test_reductions(name):
    each = loss(name, Z.view(2, 3, 5), Y.view(2, 3), reduction="none")
    assert each.shape == (2, 3)
    torch.testing.assert_close(loss(name, Z, Y, reduction="sum"), each.sum())
    torch.testing.assert_close(loss(name, Z, Y), each.mean())


@pytest.mark.parametrize("name", NAMES)
def test_ignored_targets_add_nothing(name):
    y = torch.where(Y == 0, -100, Y)
    torch.testing.assert_close(loss(name, Z, y), loss(name, Z[Y != 0], Y[Y != 0]))
    torch.testing.assert_close(loss(name, Z, Y, ignore_index=0), loss(name, Z, y))
    assert loss(name, Z, y, reduction="none")[[0, 5]].tolist() == [0, 0]


@pytest.mark.parametrize(("dtype", "label"), [(torch.uint8, 156), (torch.uint8, 50), (torch.int8, 100)])
def test_targets_in_few_bits_are_the_classes_that_they_name(dtype, label):
    z = torch.randn(1, 300, generator=torch.Generator().manual_seed(0))  # -100 is 156 in 8 bits, and 300 is 44
    narrow = entmax15_loss(z, torch.tensor([label], dtype=dtype))
    torch.testing.assert_close(narrow, entmax15_loss(z, torch.tensor([label])))


@pytest.mark.parametrize("name", NAMES)
def test_all_targets_ignored_gives_zero_and_zero_gradient(name):
    z = Z.clone().requires_grad_()
    value = loss(name, z, torch.full((6,), -100))
    value.backward()
    assert value == 0
    assert not z.grad.any()


def test_empty_batch_gives_zero():
    assert entmax15_loss(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)) == 0


@pytest.mark.parametrize("name", NAMES)
def test_num_items_divides_the_sum(name):
    count = 2**24 + 1  # no float32
    assert loss(name, Z, Y, num_items=count) == loss(name, Z, Y, reduction="sum") / count
    total = loss(name, Z, Y, reduction="sum")
    torch.testing.assert_close(loss(name, Z, Y, num_items=24), total / 24)
    for count in (torch.tensor(24), torch.tensor([24])):
        torch.testing.assert_close(loss(name, Z, Y, num_items=count), total / 24)


@pytest.mark.parametrize("name", NAMES)
def test_class_weights_weigh_rows_and_the_mean(name):
    weight = torch.tensor([1.0, 2.0, 0.5, 0.0, 3.0], dtype=torch.float64)
    each = loss(name, Z, Y, reduction="none")
    torch.testing.assert_close(loss(name, Z, Y, weight=weight, reduction="none"), each * weight[Y])
    torch.testing.assert_close(loss(name, Z, Y, weight=weight), (each * weight[Y]).sum() / weight[Y].sum())
    soft = loss(name, Z, F.one_hot(Y, 5).double(), weight=weight)
    torch.testing.assert_close(soft, loss(name, Z, Y, weight=weight))
    smoothed = {"weight": weight, "label_smoothing": 0.2}
    soft = loss(name, Z, F.one_hot(Y, 5).double(), **smoothed)
    torch.testing.assert_close(soft, loss(name, Z, Y, **smoothed))


def test_class_weights_of_distributions_are_not_rounded_under_autocast():
    generator = torch.Generator().manual_seed(0)
    z, weight = torch.randn(3, 500, generator=generator), torch.rand(500, generator=generator)
    y = torch.randn(3, 500, generator=generator).softmax(-1)
    expected = entmax15_loss(z, y, reduction="none") * (y @ weight)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(entmax15_loss(z, y, weight=weight, reduction="none"), expected)


def test_softmax_with_weights_and_ignored_targets_is_torch_cross_entropy():
    weight = torch.tensor([1.0, 2.0, 0.5, 0.1, 3.0], dtype=torch.float64)
    y = torch.where(Y == 3, -100, Y)
    torch.testing.assert_close(softmax_loss(Z, y, weight=weight), F.cross_entropy(Z, y, weight=weight))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("eps", [0.1, 1.0])
def test_label_smoothing_is_the_loss_of_the_smoothed_target(name, eps):
    smoothed = (1 - eps) * F.one_hot(Y, 5).double() + eps / 5
    expected = loss(name, Z, smoothed, reduction="none")
    torch.testing.assert_close(loss(name, Z, Y, label_smoothing=eps, reduction="none"), expected)
    of_soft = loss(name, Z, F.one_hot(Y, 5).double(), label_smoothing=eps, reduction="none")
    torch.testing.assert_close(of_soft, expected)


@pytest.mark.parametrize("name", NAMES)
def test_label_smoothing_of_long_rows(name):
    z = torch.randn(3, 1300, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    y = torch.tensor([0, 7, 1299])
    smoothed = 0.9 * F.one_hot(y, 1300).double() + 0.1 / 1300
    by_class = loss(name, z, y, label_smoothing=0.1)
    by_distribution = loss(name, z, smoothed)
    torch.testing.assert_close(by_class, by_distribution)
    gradients = [torch.autograd.grad(value, z)[0] for value in (by_class, by_distribution)]
    torch.testing.assert_close(*gradients)


def test_softmax_label_smoothing_is_torchs_but_for_the_entropy_of_the_target():
    smoothed = 0.8 * F.one_hot(Y[:1], 5).double() + 0.2 / 5
    negentropy = (smoothed * smoothed.log()).sum()
    expected = F.cross_entropy(Z, Y, label_smoothing=0.2) + negentropy
    torch.testing.assert_close(softmax_loss(Z, Y, label_smoothing=0.2), expected)


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_target_mass_are_ignored(name):
    y = F.one_hot(Y, 5).double()
    y[2] = 0
    kept = [0, 1, 3, 4, 5]
    for options in ({}, {"label_smoothing": 0.1}):
        torch.testing.assert_close(loss(name, Z, y, **options), loss(name, Z[kept], Y[kept], **options))


def test_settings_reach_the_map():
    assert entmax_loss(Z, Y, 1.2) != entmax_loss(Z, Y, 1.8)
    assert alpha_relu_loss(Z, Y, 1.5, 0.1) != alpha_relu_loss(Z, Y, 1.5, 0.4)
    assert alpha_relu_loss(Z, Y, 1.5, 0.1) != alpha_relu_loss(Z, Y, 1.6, 0.1)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (
            ValueError,
            "reduction must be one of 'mean', 'sum', 'none', was 'avg'",
            lambda: entmax15_loss(Z, Y, reduction="avg"),
        ),
        (
            ValueError,
            "num_items divides the sum .* was given with 'sum'",
            lambda: entmax15_loss(Z, Y, reduction="sum", num_items=3),
        ),
        (
            ValueError,
            r"label_smoothing must be in \[0, 1\], was 1.5",
            lambda: entmax15_loss(Z, Y, label_smoothing=1.5),
        ),
        (TypeError, "logits must be floating-point, were torch.int64", lambda: entmax15_loss(Z.long(), Y)),
        (
            ValueError,
            r"logits must be \(..., V\) with V >= 1, were \(2, 0\)",
            lambda: entmax15_loss(Z.new_zeros(2, 0), Y[:2]),
        ),
        (
            ValueError,
            r"weight must be of shape \(5,\), one entry per class, was \(4,\)",
            lambda: entmax15_loss(Z, Y, weight=Z[0, :4]),
        ),
        (TypeError, "target must hold class indices .* was torch.bool", lambda: entmax15_loss(Z, Y > 0)),
        (TypeError, "target must hold class indices .* was torch.complex64", lambda: entmax15_loss(Z, Y + 0j)),
        (
            TypeError,
            "ignore_index must be a whole number, was True",
            lambda: entmax15_loss(Z, Y, ignore_index=True),
        ),
        (ValueError, r"must agree, were \(6, 5\) and \(5,\)", lambda: entmax15_loss(Z, Y[:5])),
        (IndexError, r"target must be in \[0, 5\) or -100 \(ignored\), was 5", lambda: entmax15_loss(Z, Y + 1)),
        (
            IndexError,
            r"or -1 \(ignored\), was -100",
            lambda: entmax15_loss(Z, Y.index_fill(0, Y[:1], -100), ignore_index=-1),
        ),
        (ValueError, r"must both be \(..., V\), were \(6, 5\) and \(6, 4\)", lambda: entmax15_loss(Z, Z[:, :4])),
        (ValueError, "must not require a gradient; detach", lambda: entmax15_loss(Z, Z.softmax(-1).requires_grad_())),
        (
            ValueError,
            "must be >= 0 and sum to one .* lowest was -1.0",
            lambda: entmax15_loss(Z, -torch.ones_like(Z) / 1),
        ),
        (ValueError, "sums went from 2.5 to 2.5", lambda: entmax15_loss(Z, torch.full_like(Z, 0.5))),
        (
            ValueError,
            "unknown sparse map 'entmx15'; choose one of 'alpha_relu', ",
            lambda: fenchel_young_loss(Z, Y, "entmx15"),
        ),
        (
            ValueError,
            "sparsemax takes no setting 'alpha'; it takes none",
            lambda: fenchel_young_loss(Z, Y, "sparsemax", alpha=2.0),
        ),
        (
            ValueError,
            "alpha_relu takes no setting 'beta'; it takes 'alpha', 'tau'",
            lambda: fenchel_young_loss(Z, Y, "alpha_relu", beta=2.0),
        ),
        (
            ValueError,
            'tau must be a number from -1000000 to 1000000, was "auto", which only sparsify',
            lambda: fenchel_young_loss(Z, Y, "alpha_relu"),
        ),
        *(
            (
                ValueError,
                f"impl=\"{impl}\" knows 'alpha_relu', .*, not 'sparsegen_lin'; use impl",
                lambda impl=impl: fenchel_young_loss(Z, Y, "sparsegen_lin", impl=impl),
            )
            for impl in ("cpp", "triton")
        ),
        (ValueError, "alpha must be a number from 1 to 64, was 0.5", lambda: entmax_loss(Z, Y, 0.5)),
        (ValueError, "alpha must be a number from 1.001 to 5, was 1", lambda: alpha_relu_loss(Z, Y, 1.0, 0.0)),
        (TypeError, "alpha must be a number from 1 to 64, was '1.5'", lambda: entmax_loss(Z, Y, "1.5")),
        (TypeError, "alpha must be a number from 1.001 to 5, was tensor", lambda: alpha_relu_loss(Z, Y, Z[:, 0], 0.0)),
    ],
)
def test_misuse_is_refused_in_words(error, words, call):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("wrap", [lambda count: count, torch.tensor], ids=["number", "tensor"])
def test_a_number_of_items_that_divides_nothing_is_refused(wrap):
    for count in (-1, -0.5, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"num_items must be a finite number >= 0, was {count}"):
            entmax15_loss(Z, Y, num_items=wrap(count))
    for count in (True, [1, 2]):
        with pytest.raises(TypeError, match="num_items must be a finite number >= 0, was "):
            entmax15_loss(Z, Y, num_items=wrap(count))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [0, torch.tensor(0), torch.tensor([0])], ids=str)
def test_no_items_give_no_loss_and_no_gradient(name, count):
    z = Z.clone().requires_grad_()
    value = loss(name, z, torch.full((6,), -100), num_items=count)
    value.backward()
    assert value == 0
    assert not z.grad.any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [0, torch.tensor(0.0)], ids=str)
def test_no_items_beside_labels_that_count_are_refused(name, count):
    y = torch.where(Y == 0, -100, Y)
    with pytest.raises(ValueError, match="the number of items was 0, but 4 labels of this batch count"):
        loss(name, Z, y, num_items=count)


@pytest.mark.parametrize("count", [0, -1])
def test_a_wrong_count_that_cannot_be_read_gives_nan(monkeypatch, count):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert loss("entmax15", Z, Y, num_items=torch.tensor(count)).isnan()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_label_smoothing_of_half_precision_logits_is_computed_in_float32(name, dtype, scale):
    z = (Z * scale).to(dtype)
    exact = loss(name, z.double(), Y, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(
        loss(name, z, Y, label_smoothing=0.1, reduction="none").double(), exact, atol=1e-6, rtol=2e-6
    )


def test_class_weights_of_another_dtype_are_those_of_the_losses():
    generator = torch.Generator().manual_seed(0)
    z, y = torch.randn(1000, 5, generator=generator), torch.randint(5, (1000,), generator=generator)
    weight = torch.tensor([1.0, 3.0, 0.5, 2.0, 0.25])
    for dtype in (torch.bfloat16, torch.float64):
        found = entmax15_loss(z, y, weight=weight.to(dtype))
        torch.testing.assert_close(found, entmax15_loss(z, y, weight=weight), atol=1e-6, rtol=1e-6)


def test_distributions_that_were_rounded_to_half_precision_are_taken():
    y = torch.tensor([[0.333, 0.334, 0.333]]).bfloat16()
    assert 1e-3 < abs(float(y.float().sum()) - 1) < 2**-7
    assert entmax15_loss(torch.zeros(1, 3), y).isfinite()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("dtype", "of_target"),
    [(torch.float64, torch.float32), (torch.float32, torch.float64), (torch.bfloat16, torch.float16)],
    ids=str,
)
def test_distributions_of_another_dtype_are_those_of_the_losses(name, dtype, of_target):
    y = (3 * Z).softmax(-1).to(of_target)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert torch.equal(loss(name, Z.to(dtype), y), loss(name, Z.to(dtype), y.to(wide)))


@pytest.mark.parametrize(
    "row",
    [[0.1, 0.2, 0, 0, 0], [0.49, 0.49, 0, 0, 0], [1.5, -0.5, 0, 0, 0], [0.5, 0.52, 0, 0, 0], [0.5, -0.5, 0, 0, 0]],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_one_row_that_is_no_distribution_is_refused(row, dtype):
    y = F.one_hot(Y, 5).to(dtype)
    y[3] = torch.tensor(row)
    with pytest.raises(ValueError, match="target probabilities must be >= 0 and sum to one in each row"):
        entmax15_loss(Z, y)
