import pytest
import torch

from hf_sparse.functional import entmax, entmax_support, entmax_threshold, get_map


def scores(*shape, scale=3.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * scale


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 4000), (7,)])
def test_support_is_the_ragged_form_of_the_weights(alpha, shape):
    z = scores(*shape)
    p = entmax(z, alpha).view(-1, shape[-1])
    indices, values, offsets = entmax_support(z, alpha)
    assert offsets.tolist() == [0, *(p > 0).sum(-1).cumsum(0).tolist()]
    assert indices.tolist() == (p > 0).nonzero()[:, 1].tolist()
    torch.testing.assert_close(values, p[p > 0], atol=1e-6, rtol=0)


def test_alpha_changes_the_support():
    z = scores(3, 2000)
    assert len(entmax_support(z, 1.5).indices) != len(entmax_support(z, 2.0).indices)


@pytest.mark.parametrize("length", [10, 2000])
def test_masked_rows_are_empty_and_crowded_and_nan_rows_whole(length):
    z = scores(4, length)
    z[0], z[1], z[2, 3] = -torch.inf, 0.5, torch.nan
    _indices, values, offsets = entmax_support(z, 1.5)
    sizes = offsets.diff().tolist()
    assert sizes[:3] == [0, length, length]
    torch.testing.assert_close(values[: sizes[1]], torch.full((length,), 1 / length), atol=1e-8, rtol=1e-3)
    assert bool(values[length : 2 * length].isnan().all())


def test_values_carry_the_gradient_of_the_weights():
    z = scores(3, 1500).requires_grad_()
    p = entmax(z, 1.5)
    upstream = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    (expected,) = torch.autograd.grad(p, z, upstream)
    (actual,) = torch.autograd.grad(entmax_support(z, 1.5).values, z, upstream[p > 0])
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("length", [8, 1500])
@pytest.mark.parametrize("dim", [0, -1])
def test_threshold_reproduces_the_weights(alpha, length, dim):
    z = scores(3, length).double()
    z = z.mT if dim == 0 else z
    tau = entmax_threshold(z, alpha, dim=dim)
    assert tau.shape == ((1, 3) if dim == 0 else (3, 1))
    p = ((alpha - 1) * z - tau).clamp(min=0) ** (1 / (alpha - 1))
    torch.testing.assert_close(p, entmax(z, alpha, dim=dim), atol=1e-7, rtol=0)


def test_threshold_of_a_masked_row_lets_nothing_through_and_passes_no_gradient():
    z = torch.tensor([[-torch.inf, -torch.inf], [1.0, 0.9]], requires_grad=True)
    tau = entmax_threshold(z)
    assert tau[0].tolist() == [torch.inf]
    tau[1].sum().backward()
    assert z.grad[0].tolist() == [0, 0]
    assert torch.autograd.gradcheck(entmax_threshold, torch.randn(2, 4).double().requires_grad_())


@pytest.mark.parametrize("function", [entmax_support, entmax_threshold])
def test_softmax_has_neither_threshold_nor_zeros(function):
    with pytest.raises(ValueError, match=r"alpha must be > 1, was 1\.0: softmax has neither"):
        function(torch.zeros(2), 1.0)
    with pytest.raises(ValueError, match=r"alpha must be a number from 1 to 64, was 0\.5"):
        function(torch.zeros(2), 0.5)


def test_unknown_maps_are_named_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown sparse map 'entmx15'; choose one of 'alpha_relu', 'csoftmax'"):
        get_map("entmx15")
