"""Maps for attention whose weights do not sum to one: closed forms, identities of their papers, extreme scores."""

import math

import pytest
import torch

from hf_sparse.functional import (
    MAPS,
    alpha_relu,
    get_map,
    relu_over_n,
    sigmoid,
    softmax,
    softmax1,
    softpick,
    squared_relu_over_n,
)
from hf_sparse.generation.processors import SparseLogitsProcessor
from hf_sparse.losses import fenchel_young_loss
from tests.tolerances import WEIGHT

ATTENTION_ONLY = sorted(name for name, known in MAPS.items() if known.attention_only)
EVERY = pytest.mark.parametrize("name", ATTENTION_ONLY)


def scores(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2


def masked(z, share=0.4):
    hidden = torch.rand(z.shape, generator=torch.Generator().manual_seed(9)) < share
    hidden[..., 0] = False
    return z.masked_fill(hidden, -torch.inf)


def test_the_maps_are_those_that_declare_it():
    assert ATTENTION_ONLY == ["relu_over_n", "sigmoid", "softmax1", "softpick", "squared_relu_over_n"]
    assert get_map("alpha_relu").any_scores
    assert not get_map("alpha_relu").attention_only


CLOSED_FORMS = {
    "relu_over_n": lambda z, n: [max(x, 0) / n for x in z],
    "squared_relu_over_n": lambda z, n: [max(x, 0) ** 2 / n for x in z],
    "sigmoid": lambda z, n: [math.exp(x) / (n + math.exp(x)) for x in z],
    "softmax1": lambda z, n: [math.exp(x) / (1 + sum(map(math.exp, z))) for x in z],
    "softpick": lambda z, n: [max(math.exp(x) - 1, 0) / sum(abs(math.exp(y) - 1) for y in z) for x in z],
}


@EVERY
@pytest.mark.parametrize("length", [1, 2, 7])
def test_weights_are_the_closed_form_over_the_visible_scores(name, length):
    z = scores(length)
    expected = torch.tensor(CLOSED_FORMS[name](z.tolist(), length), dtype=torch.float64)
    torch.testing.assert_close(get_map(name).function(z), expected, atol=1e-14, rtol=1e-12)
    beside_masked = torch.cat([torch.tensor([-torch.inf] * 3), z, torch.tensor([-torch.inf])])
    found = get_map(name).function(beside_masked)
    torch.testing.assert_close(found[3:-1], expected, atol=1e-14, rtol=1e-12)
    assert not found[:3].any()
    assert not found[-1:].any()


@EVERY
def test_derivatives_at_scores_of_both_signs_and_beside_masked_ones(name):
    z = scores(3, 6)
    assert (z < 0).any(-1).all()
    assert torch.autograd.gradcheck(get_map(name).function, z.requires_grad_())
    assert torch.autograd.gradgradcheck(get_map(name).function, z)
    hidden = masked(z.detach()) == -torch.inf
    function = lambda z: get_map(name).function(z.masked_fill(hidden, -torch.inf))  # noqa: E731
    assert torch.autograd.gradcheck(function, z)
    assert torch.autograd.gradgradcheck(function, z)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_extreme_scores_have_finite_weights_and_gradients(name, dtype):
    rows = [[0.0] * 4, [1e4, -1e4, 0.0, 1e-30], [-1e4] * 4, [1e4] * 4, [1e-30, -1e-30, -1e4, -torch.inf]]
    z = torch.tensor(rows, dtype=dtype, requires_grad=True)
    p = get_map(name).function(z)
    assert bool((p.isfinite() & (p >= 0)).all())
    p.float().sum().backward()
    assert bool(z.grad.isfinite().all())


@EVERY
def test_float32_is_as_good_as_float64(name):
    z = masked(scores(5, 40))
    found = get_map(name).function(z.float())
    torch.testing.assert_close(found.double(), get_map(name).function(z), atol=2 * WEIGHT[torch.float32], rtol=1e-5)


def test_softmax1_is_softmax_beside_a_score_of_zero():
    z = masked(scores(4, 9))
    beside = softmax(torch.cat([z, torch.zeros(4, 1, dtype=z.dtype)], -1))
    torch.testing.assert_close(softmax1(z), beside[:, :-1], atol=1e-14, rtol=0)
    torch.testing.assert_close(softmax1(z + 800), softmax(z), atol=1e-12, rtol=0)  # e^800 overflows


def test_softpick_has_the_zeros_and_the_mass_of_its_paper():
    z = scores(50, 8)
    p = softpick(z)
    assert torch.equal(p > 0, z > 0)
    gained, lost = (z.exp() - 1).clamp(min=0).sum(-1), (1 - z.exp()).clamp(min=0).sum(-1)
    torch.testing.assert_close(p.sum(-1), gained / (gained + lost), atol=1e-12, rtol=0)
    assert not softpick(-z.abs()).any()
    torch.testing.assert_close(softpick(z.abs()).sum(-1), torch.ones(50, dtype=z.dtype))


def test_softpick_keeps_the_digits_of_small_scores():
    z = torch.tensor([3e-8, 1e-8, -4e-8])  # in float32 exp gives 1 for each
    torch.testing.assert_close(softpick(z), torch.tensor([3 / 8, 1 / 8, 0.0]), atol=1e-6, rtol=0)


def test_softpick_moves_scores_below_zero_as_its_paper_derives():
    """``dp_i / dz_j = e^{z_j} (step(z_j) [i = j] - sign(z_j) p_i) / sum_k |e^{z_k} - 1|``."""
    z = scores(6)
    p, total = softpick(z), (z.exp() - 1).abs().sum()
    expected = (torch.diag((z > 0).to(z)) - p[:, None] * z.sign()) * z.exp() / total
    torch.testing.assert_close(torch.autograd.functional.jacobian(softpick, z), expected, atol=1e-12, rtol=0)


def test_doubling_a_sequence_leaves_the_output_of_attention_over_n_as_it_was():
    z, values = scores(7), scores(7, 3, seed=1)
    for function in (relu_over_n, squared_relu_over_n):
        torch.testing.assert_close(function(z.repeat(2)) @ values.repeat(2, 1), function(z) @ values)


def test_sigmoid_at_zero_scores_gives_each_key_about_what_softmax_gives_it():
    for n in (1, 10, 1000):
        torch.testing.assert_close(sigmoid(torch.zeros(n)), torch.full((n,), 1 / (n + 1)))


def test_the_bias_of_sigmoid_is_a_number_a_tensor_or_the_length():
    z = masked(scores(4, 9))
    n = (z > -torch.inf).sum(-1, keepdim=True)
    torch.testing.assert_close(sigmoid(z), sigmoid(z, bias=-n.double().log()))
    torch.testing.assert_close(sigmoid(z, bias=-2.0), torch.sigmoid(z - 2))
    bias = scores(4, 1, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda bias: sigmoid(z, bias), bias)
    torch.testing.assert_close(sigmoid(z, bias.detach(), dim=0), torch.sigmoid(z + bias.detach()))
    allowed = 'bias must be a number from -1000000 to 1000000 or "length", was '
    with pytest.raises(ValueError, match=allowed + "10000000"):
        sigmoid(z, bias=1e7)
    with pytest.raises(TypeError, match=allowed + "'short'"):
        sigmoid(z, bias="short")
    with pytest.raises(ValueError, match=r"bias must broadcast to the scores \(4, 9\), was of shape \(5,\)"):
        sigmoid(z, bias=torch.zeros(5))


def test_alpha_relu_at_alpha_2_is_relu_of_scores_above_tau():
    z = scores(3, 8)
    torch.testing.assert_close(alpha_relu(z, 2.0, 0.0) / 8, relu_over_n(z), atol=1e-12, rtol=0)
    torch.testing.assert_close(4 * alpha_relu(z, 1.5, 0.0) / 8, squared_relu_over_n(z), atol=1e-12, rtol=0)


@EVERY
def test_they_have_no_loss_and_process_no_logits(name):
    with pytest.raises(ValueError, match=f"'{name}' weighs attention and gives no distribution over classes"):
        fenchel_young_loss(torch.zeros(1, 3), torch.tensor([0]), name)
    with pytest.raises(ValueError, match=f"{name} weighs attention and gives no distribution over classes"):
        SparseLogitsProcessor(name)
