"""The multilabel losses against their definitions over pairs, and zero exactly where the map is right."""

import pytest
import torch

from hf_sparse.functional import sparsemax
from hf_sparse.losses import (
    softmax_log_loss,
    sparsegen_lin_hinge_loss,
    sparsehourglass_hinge_loss,
    sparsemax_huber_loss,
)

LOSSES = [softmax_log_loss, sparsegen_lin_hinge_loss, sparsehourglass_hinge_loss, sparsemax_huber_loss]
HINGES = [sparsegen_lin_hinge_loss, sparsehourglass_hinge_loss]


def examples(num_rows, num_classes, seed=0, weighted=False):
    generator = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(num_rows, num_classes, generator=generator, dtype=torch.float64)
    y = (torch.rand(num_rows, num_classes, generator=generator) < 0.4).double()
    y[torch.arange(num_rows), torch.randint(num_classes, (num_rows,), generator=generator)] = 1
    return z, y * (1 + torch.rand(num_rows, num_classes, generator=generator)) if weighted else y


def over_pairs(z, eta, score, margin):
    """Both sums over pairs, as the paper writes them, with unordered pairs of positives."""
    total = 0.0
    for i in range(len(z)):
        for j in range(len(z)):
            if eta[i] > 0 and eta[j] > 0 and i < j:
                total = total + (score * (z[i] - z[j]) - margin * (eta[i] - eta[j])).abs()
            elif eta[i] > 0 and eta[j] == 0:
                total = total + (margin * eta[i] - score * (z[i] - z[j])).clamp(min=0)
    return total


def eq7(z, y, lam):
    return over_pairs(z, y / y.sum(), 1 / (1 - lam), 1.0)


def eq6(z, y, q):
    num_classes = len(z)
    return over_pairs(z, y / y.sum(), 1.0, (z.sum().abs() + num_classes * q) / (1 + num_classes * q))


def sparsegen_lin(z, lam):
    return sparsemax(z / (1 - lam))


def sparsehourglass(z, q):
    num_classes = z.shape[-1]
    return sparsemax(z * (1 + num_classes * q) / (z.sum(-1, keepdim=True).abs() + num_classes * q))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_classes", [1, 2, 9])
@pytest.mark.parametrize(
    ("loss", "definition", "settings"),
    [
        (sparsegen_lin_hinge_loss, eq7, [0.0, 0.7, -3.0]),
        (sparsehourglass_hinge_loss, eq6, [0.0, 0.1, 1.0, 20.0]),
    ],
)
def test_hinge_is_its_definition_over_pairs(loss, definition, settings, num_classes, weighted):
    z, y = examples(12, num_classes, weighted=weighted)
    for setting in settings:
        each, gradient = value_and_gradient(lambda z, s=setting: loss(z, y, s, reduction="none"), z)
        expected, their_gradient = value_and_gradient(
            lambda z, s=setting: torch.stack([definition(a, b, s) + 0 * a.sum() for a, b in zip(z, y)]), z
        )
        torch.testing.assert_close(each, expected)
        torch.testing.assert_close(gradient, their_gradient)


def value_and_gradient(loss, z):
    z = z.clone().requires_grad_()
    value = loss(z)
    return value.detach(), torch.autograd.grad(value.sum(), z)[0]


@pytest.mark.parametrize("weighted", [False, True])
def test_hinge_is_zero_where_the_map_is_right_and_only_there(weighted):
    """Scores built to give p = eta have no loss; the same scores disturbed have some where p moved."""
    _, y = examples(200, 6, seed=3, weighted=weighted)
    eta = y / y.sum(-1, keepdim=True)
    below = torch.rand(200, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    right = torch.where(eta > 0, eta, -below)  # sparsemax of this is eta
    cases = [
        (sparsegen_lin_hinge_loss, sparsegen_lin, 0.6, 0.4 * right),
        (sparsehourglass_hinge_loss, sparsehourglass, 0.5, None),
    ]
    for loss, function, setting, z in cases:
        if z is None:  # scale so that zhat = right: z = right D / (1 + K q), D = |sum z| + K q
            total = right.sum(-1, keepdim=True).abs() / (1 + 6 * setting)
            z = right / (1 + 6 * setting) * (6 * setting / (1 - total))
        torch.testing.assert_close(function(z, setting), eta)
        assert loss(z, y, setting, reduction="none").abs().max() < 1e-12
        disturbed = z + 0.01 * torch.randn(z.shape, generator=torch.Generator().manual_seed(5), dtype=z.dtype)
        wrong = (function(disturbed, setting) - eta).abs().amax(-1) > 1e-9
        assert ((loss(disturbed, y, setting, reduction="none") > 1e-9) == wrong).all()
        assert wrong.any()


def test_ties_get_the_zero_subgradient():
    y = torch.tensor([[1.0, 1.0, 0.0]])
    z = torch.tensor([[0.5, 0.5, 0.0]])
    value, gradient = value_and_gradient(lambda z: sparsegen_lin_hinge_loss(z, y), z)
    assert value == 0
    assert not gradient.any()


def test_hinge_is_convex_along_segments():
    a, y = examples(50, 7, seed=1)
    b, _ = examples(50, 7, seed=2)
    for loss in HINGES:
        ends = (loss(a, y, 0.3, reduction="none") + loss(b, y, 0.3, reduction="none")) / 2
        assert (loss((a + b) / 2, y, 0.3, reduction="none") <= ends + 1e-12).all()


def test_large_hourglass_q_is_the_sparsemax_hinge():
    z, y = examples(20, 5)
    torch.testing.assert_close(
        sparsehourglass_hinge_loss(z, y, 1e9), sparsegen_lin_hinge_loss(z, y, 0.0), atol=1e-6, rtol=1e-6
    )


def test_hinge_of_many_classes_in_float32():
    z, y = examples(3, 4000, seed=8)
    for loss in HINGES:
        torch.testing.assert_close(loss(z.float() + 64, y, 0.3), loss(z.float().double() + 64, y, 0.3).float())


def test_huber_is_its_closed_form_and_its_gradient_is_p_minus_eta():
    z, y = examples(20, 6)
    eta = y / y.sum(-1, keepdim=True)
    value, gradient = value_and_gradient(lambda z: sparsemax_huber_loss(z, y, reduction="none"), z)
    p = sparsemax(z)
    tau = ((z * (p > 0)).sum(-1) - 1) / (p > 0).sum(-1)
    smooth = ((z**2 - tau[:, None] ** 2) * (p > 0)).sum(-1) / 2
    torch.testing.assert_close(value, -(eta * z).sum(-1) + smooth + (eta**2).sum(-1) / 2)
    torch.testing.assert_close(gradient, p - eta)


def test_softmax_log_is_the_kl_divergence():
    z, y = examples(20, 6)
    eta = y / y.sum(-1, keepdim=True)
    expected = torch.nn.functional.kl_div(z.log_softmax(-1), eta, reduction="none").sum(-1)
    torch.testing.assert_close(softmax_log_loss(z, y, reduction="none"), expected)


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_without_labels_are_ignored(loss):
    z, y = examples(6, 5)
    y[2] = 0
    kept = [0, 1, 3, 4, 5]
    torch.testing.assert_close(loss(z, y), loss(z[kept], y[kept]))
    _, gradient = value_and_gradient(lambda z: loss(z, y), z)
    assert not gradient[2].any()
    assert loss(z[:1], torch.zeros(1, 5)) == 0


@pytest.mark.parametrize("loss", LOSSES)
def test_reductions_leading_dimensions_and_label_types(loss):
    z, y = examples(6, 5)
    each = loss(z.view(2, 3, 5), y.view(2, 3, 5), reduction="none")
    assert each.shape == (2, 3)
    torch.testing.assert_close(loss(z, y, reduction="sum"), each.sum())
    torch.testing.assert_close(loss(z, y.bool()), each.mean())
    torch.testing.assert_close(loss(z, y.long()), each.mean())


@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_gives_float32(loss):
    z, y = examples(4, 5)
    value = loss(z.bfloat16(), y)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(z.bfloat16().float(), y))


def test_settings_change_the_loss():
    z, y = examples(4, 5)
    assert sparsegen_lin_hinge_loss(z, y, 0.0) != sparsegen_lin_hinge_loss(z, y, 0.5)
    assert sparsehourglass_hinge_loss(z, y, 0.1) != sparsehourglass_hinge_loss(z, y, 0.5)


def test_misuse_is_refused_in_words():
    z, y = examples(4, 5)
    with pytest.raises(ValueError, match=r"lam must be a number from -1000000000 to 0.999999, was 1.0"):
        sparsegen_lin_hinge_loss(z, y, 1.0)
    with pytest.raises(ValueError, match="q must be a number from 0 to 1000000000, was -1"):
        sparsehourglass_hinge_loss(z, y, -1)
    for loss in LOSSES:
        with pytest.raises(ValueError, match=r"must both be \(..., K\), K >= 1, were \(4, 5\) and \(4, 4\)"):
            loss(z, y[:, :4])
        with pytest.raises(ValueError, match=r"labels must be finite and >= 0 \(multi-hot\), the lowest was -1.0"):
            loss(z, -y)
        with pytest.raises(TypeError, match=r"^labels must be a tensor, was \["):
            loss(z, y.tolist())
        with pytest.raises(TypeError, match=r"logits must be floating-point, were torch.int64"):
            loss(z.long(), y)
        with pytest.raises(ValueError, match="reduction must be one of 'mean', 'sum', 'none', was 'avg'"):
            loss(z, y, reduction="avg")
