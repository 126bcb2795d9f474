"""Every map under torch.func: forward-mode derivatives are those of its backward, and rows are mapped over."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from hf_sparse.functional import MAPS, alpha_relu, csoftmax, csparsemax, entmax
from tests.tolerances import GRADIENT, WEIGHT

REQUIRED = {"alpha_relu": {"alpha": 1.5, "tau": 0.1}}
MAPPED = {name: known.function for name, known in MAPS.items() if known.bounds is None}
ALPHAS = (1.0, 1.05, 1.3, 1.5, 2.0, 3.0)
CALLS = {name: (function, REQUIRED.get(name, {})) for name, function in MAPPED.items()} | {
    f"entmax {alpha}, {impl}": (entmax, {"alpha": alpha, "impl": impl})
    for alpha in ALPHAS
    for impl in ("auto", "torch")
}


def scores(length, dtype=torch.float64):
    z = torch.rand(3, length, generator=torch.Generator().manual_seed(length), dtype=torch.float64) + 0.1
    return z.to(dtype), torch.linspace(-1, 1, 3 * length, dtype=torch.float64).view(3, length).to(dtype)


def by_dual_tensors(function, z, tangent):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(z, tangent))).tangent


@pytest.mark.parametrize("name", CALLS)
def test_every_map_under_the_older_vmap_of_autograd(name):
    function, settings = CALLS[name]
    for length, dtype in ((6, torch.float64), (1500, torch.float32)):
        z = 3 * scores(length, dtype)[0]
        few = lambda z: function(z, **settings)[:, :3]  # noqa: E731
        found, wanted = (torch.autograd.functional.jacobian(few, z, vectorize=way) for way in (True, False))
        torch.testing.assert_close(found, wanted, atol=GRADIENT[dtype], rtol=0)


@pytest.mark.parametrize("shape", [(), (3, 1)], ids=str)
def test_a_learned_alpha_under_the_older_vmap_of_autograd(shape):
    z, alpha = scores(6)[0], torch.full(shape, 1.3, dtype=torch.float64)
    found, wanted = (
        torch.autograd.functional.jacobian(lambda alpha: entmax(z, alpha), alpha, vectorize=way)
        for way in (True, False)
    )
    assert wanted.any()
    torch.testing.assert_close(found, wanted, atol=GRADIENT[torch.float64], rtol=0)


@pytest.mark.parametrize("length", [6, 1500])
@pytest.mark.parametrize("name", CALLS)
def test_every_map(name, length):
    function, settings = CALLS[name]
    for dtype in (torch.float64, torch.float32):
        z, tangent = scores(length, dtype)
        z = 3 * z
        call = lambda z: function(z, **settings)  # noqa: E731
        _, wanted = torch.autograd.functional.jvp(call, z, tangent)
        assert wanted.any()
        for found in (jvp(call, (z,), (tangent,))[1], by_dual_tensors(call, z, tangent)):
            torch.testing.assert_close(found, wanted, atol=GRADIENT[dtype], rtol=1e-5)


@pytest.mark.parametrize("name", CALLS)
def test_rows_are_mapped_over(name):
    function, settings = CALLS[name]
    z, _ = scores(6)
    call = lambda z: function(3 * z, **settings)  # noqa: E731
    torch.testing.assert_close(vmap(call)(z), call(z), atol=WEIGHT[torch.float64], rtol=0)
    torch.testing.assert_close(vmap(call, in_dims=1)(z.T), call(z), atol=WEIGHT[torch.float64], rtol=0)
    jacobians = torch.autograd.functional.jacobian(call, z)
    wanted = torch.stack([jacobians[row, :, row] for row in range(len(z))])
    torch.testing.assert_close(vmap(jacrev(call))(z), wanted, atol=GRADIENT[torch.float64], rtol=0)


@pytest.mark.parametrize("length", [6, 1500])
@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_one_result_are_mapped_over(name, length):
    function, settings = CALLS[name]
    z, upstream = scores(length)
    p = function(3 * z.requires_grad_(), **settings)
    call = lambda by: torch.autograd.grad(p, z, by, retain_graph=True)[0]  # noqa: E731
    upstreams = torch.stack([upstream, upstream.flip(1)], dim=1)
    wanted = torch.stack([call(by) for by in upstreams.unbind(1)])
    torch.testing.assert_close(vmap(call, in_dims=1)(upstreams), wanted, atol=GRADIENT[torch.float64], rtol=0)


@pytest.mark.parametrize("function", [csparsemax, csoftmax])
def test_rows_of_a_bounded_map_are_mapped_over(function):
    z, tangent = scores(6)
    call = lambda z, u: function(3 * z, u)  # noqa: E731
    weighted = lambda z, u, by: (call(z, u) * by).sum()  # noqa: E731
    for bound in (torch.full_like(z, 0.4), 0.3 + tangent.abs()):
        torch.testing.assert_close(vmap(call)(z, bound), call(z, bound), atol=WEIGHT[torch.float64], rtol=0)
        found, wanted = (of(z, bound, tangent) for of in (vmap(grad(weighted)), grad(weighted)))
        torch.testing.assert_close(found, wanted, atol=GRADIENT[torch.float64], rtol=0)


@pytest.mark.parametrize("function", [entmax, alpha_relu])
def test_alphas_of_rows(function):
    z, _ = scores(6)
    tau = {"tau": torch.tensor(0.2, dtype=torch.float64)} if function is alpha_relu else {}
    alpha = torch.tensor([[1.2], [1.5], [1.9]], dtype=torch.float64)
    call = lambda alpha: function(2 * z, alpha=alpha, **tau)  # noqa: E731
    _, wanted = torch.autograd.functional.jvp(call, alpha, torch.ones_like(alpha))
    assert wanted.any()
    for found in (
        jvp(call, (alpha,), (torch.ones_like(alpha),))[1],
        by_dual_tensors(call, alpha, torch.ones_like(alpha)),
    ):
        torch.testing.assert_close(found, wanted, atol=GRADIENT[torch.float64], rtol=0)


@pytest.mark.parametrize("impl", ["auto", "torch"])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_forward_over_reverse_on_long_rows(alpha, impl):
    z, tangent = scores(1500)
    call = lambda z: (entmax(3 * z, alpha, impl=impl) * tangent.flip(1).to(z)).sum()  # noqa: E731
    _, wanted = torch.autograd.functional.hvp(call, z, tangent)
    assert wanted.any() or alpha == 2  # sparsemax is linear on each support
    # Above alpha 2 the smallest weights have the largest slopes, of which float32 leaves few digits.
    for dtype in (torch.float64, torch.float32) if alpha <= 2 else (torch.float64,):
        _, found = jvp(grad(call), (z.to(dtype),), (tangent.to(dtype),))
        torch.testing.assert_close(found.double(), wanted, atol=GRADIENT[dtype], rtol=1e-4)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_forward_over_reverse_and_forward_over_forward(alpha):
    z, upstream = scores(5)
    call = lambda z: (entmax(3 * z, alpha) * upstream).sum()  # noqa: E731
    wanted = torch.autograd.functional.hessian(call, z)
    torch.testing.assert_close(hessian(call)(z), wanted, atol=GRADIENT[torch.float64], rtol=0)
    torch.testing.assert_close(jacfwd(jacfwd(call))(z), wanted, atol=GRADIENT[torch.float64], rtol=0)
