"""torch.func, torch.compile and torch.export see the maps as they see torch's own functions."""

import pytest
import torch

from hf_sparse.functional import entmax, entmax15, softmax, sparsegen_lin, sparsehourglass, sparsemax

MAPS = pytest.mark.parametrize("function", [softmax, entmax15, sparsemax, sparsegen_lin, sparsehourglass])


def scores(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3


@MAPS
@pytest.mark.parametrize("length", [6, 1100])
def test_vmap_grad_and_jacrev(function, length):
    z, target = scores(3, length), scores(length)

    def loss(row):
        return (function(row) * target).sum()

    torch.testing.assert_close(torch.func.vmap(function)(z), function(z))
    leaf = z.clone().requires_grad_()
    (expected,) = torch.autograd.grad((function(leaf) * target).sum(), leaf)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(z), expected)
    jacobian = torch.func.jacrev(function)(z[:2])
    torch.testing.assert_close(torch.einsum("rvsw,v->rsw", jacobian, target)[0, 0], expected[0])


@pytest.mark.parametrize("length", [6, 1100])
def test_hessian_of_a_loss_is_symmetric_and_equals_differences_of_its_gradient(length):
    z = scores(2, length)

    def gradient(z):
        return torch.func.grad(lambda z: (entmax15(z) ** 3).sum())(z)

    hessian = torch.func.jacrev(gradient)(z).view(2 * length, 2 * length)
    torch.testing.assert_close(hessian, hessian.T, atol=1e-12, rtol=0)
    step, best = torch.zeros_like(z), int(z.argmax())
    step.view(-1)[best] = 1e-6
    difference = (gradient(z + step) - gradient(z - step)) / 2e-6
    torch.testing.assert_close(hessian[best], difference.view(-1), atol=1e-6, rtol=0)


FORWARD, REVERSE = torch.func.jacfwd, torch.func.jacrev


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, torch.tensor([1.4], dtype=torch.float64)])
@pytest.mark.parametrize("outer", [FORWARD, REVERSE])
@pytest.mark.parametrize("middle", [FORWARD, REVERSE])
def test_second_and_third_derivatives_in_every_order_of_forward_and_reverse_mode(outer, middle, alpha):
    z = scores(5) / 3

    def cubes(z):
        return (entmax(z, alpha) ** 3).sum()

    second, third = REVERSE(REVERSE(cubes)), REVERSE(REVERSE(REVERSE(cubes)))
    assert second(z).abs().max() > 0.1
    for inner in (FORWARD, REVERSE):
        torch.testing.assert_close(middle(inner(cubes))(z), second(z))
        torch.testing.assert_close(outer(middle(inner(cubes)))(z), third(z))


@pytest.mark.parametrize("inner", [FORWARD, REVERSE])
@pytest.mark.parametrize("outer", [FORWARD, REVERSE])
def test_second_derivatives_in_alpha_equal_differences_of_the_first(outer, inner):
    z, alpha, step = scores(5) / 3, torch.tensor([1.4], dtype=torch.float64), 1e-5

    def of_both(alpha):
        return entmax(alpha * z, alpha)

    first = FORWARD(of_both)
    differences = (first(alpha + step) - first(alpha - step)) / (2 * step)
    torch.testing.assert_close(outer(inner(of_both))(alpha)[..., 0], differences, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("sparsemax", "aot_eager"),
        ("entmax", "aot_eager"),
        ("learned", "aot_eager"),
        pytest.param("entmax15", "inductor", marks=pytest.mark.slow),
    ],
)
def test_a_training_step_compiles_without_graph_breaks(name, backend):
    z = scores(4, 9).float().requires_grad_()
    alpha = torch.tensor([[1.3], [1.5], [1.0], [2.0]], requires_grad=True)
    function = {
        "sparsemax": lambda z, alpha: sparsemax(z),
        "entmax": lambda z, alpha: entmax(z, 1.3),
        "learned": entmax,
        "entmax15": lambda z, alpha: entmax15(z),
    }[name]

    def step(z, alpha):
        return (function(z, alpha) ** 2).sum() + 0 * alpha.sum()

    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, backend=backend)(z, alpha)
    torch.testing.assert_close(compiled, step(z, alpha))
    expected = torch.autograd.grad(step(z, alpha), (z, alpha))
    for actual, reference in zip(torch.autograd.grad(compiled, (z, alpha)), expected):
        torch.testing.assert_close(actual, reference, atol=1e-5, rtol=0)


@pytest.mark.parametrize("function", [entmax15, lambda z: entmax(z, 1.3), sparsehourglass])
def test_a_map_that_is_used_twice_trains_where_a_compiler_takes_all_numbers_for_symbols(function):
    z = scores(3, 5).requires_grad_()

    def step(z):
        return (function(2 * function(2 * z)) ** 2).sum()

    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="eager")
    found, expected = (torch.autograd.grad(each(z), z)[0] for each in (compiled, step))
    torch.testing.assert_close(found, expected)


@MAPS
def test_the_forward_exports(function):
    class Map(torch.nn.Module):
        def forward(self, z):
            return function(z)

    z = scores(2, 7)
    program = torch.export.export(Map(), (z,))
    torch.testing.assert_close(program.module()(z + 1), function(z + 1))
    of_any_length = torch.export.export(Map(), (z,), dynamic_shapes=({1: torch.export.Dim("length", min=2)},))
    for length in (7, 2000):  # long rows take another way outside graphs
        z = scores(2, length)
        torch.testing.assert_close(of_any_length.module()(z), function(z), atol=1e-5, rtol=1e-4)
