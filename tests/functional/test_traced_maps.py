"""A trace keeps no step that only the values of its example called for, and none that a kernel hides from it."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from hf_sparse.config import MapConfig
from hf_sparse.functional import MAPS, entmax15, entmax_threshold
from hf_sparse.losses import entmax15_loss
from tests.reference import clusters, entmax_by_bisection
from tests.tolerances import WEIGHT

SETTINGS = {"alpha_relu": {"tau": 1.0}}
UNBOUNDED = sorted(name for name, known in MAPS.items() if known.bounds is None)


def few_and_many():
    """Scores whose weights are on few, and on many entries."""
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(3, 5000, generator=generator) * scale + 0.1 for scale in (9.0, 0.05)]


@pytest.mark.parametrize("name", UNBOUNDED)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.torch.jit.trace:DeprecationWarning")
def test_a_traced_map_is_right_for_other_scores_than_its_examples(name):
    choice = MapConfig.parse({"name": name, **SETTINGS.get(name, {})}, "head")
    few, many = few_and_many()
    for example, other in ((few, many), (many, few)):
        traced = torch.jit.trace(lambda z: choice(z), (example,), check_trace=False)
        torch.testing.assert_close(traced(other), choice(other), atol=WEIGHT[torch.float32], rtol=1e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.torch.jit.trace:DeprecationWarning")
def test_a_traced_loss_is_right_for_other_scores_than_its_examples():
    target = torch.tensor([5, 6, 7])
    few, many = few_and_many()
    traced = torch.jit.trace(lambda z: entmax15_loss(z, target), (few,), check_trace=False)
    torch.testing.assert_close(traced(many), entmax15_loss(many, target))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_an_explicit_kernel_is_not_traced():
    with pytest.raises(ValueError, match='impl="cpp" cannot be traced or compiled'):
        torch.jit.trace(lambda z: entmax15(z, impl="cpp"), (torch.zeros(2, 5),), check_trace=False)


@pytest.mark.parametrize("length", [500, 8000])
def test_clusters_of_ties_near_the_threshold_are_no_less_exact_in_a_graph_for_any_length(length):
    z = clusters(length, 1.5)[::7]
    traced = make_fx(lambda z: entmax15(z), tracing_mode="symbolic")(z[:2, :100])
    torch.testing.assert_close(traced(z).double(), entmax_by_bisection(z, 1.5), atol=WEIGHT[torch.float32], rtol=0)


def squared(z, choice):
    return choice(z).square().sum()


@pytest.mark.parametrize("name", UNBOUNDED)
def test_torchs_own_tracer_records_what_a_map_and_its_gradient_do(name):
    """A kernel in C++ writes where ``make_fx`` does not see it, which gave a graph that returned empty memory."""
    choice = MapConfig.parse({"name": name, **SETTINGS.get(name, {})}, "head")
    few, many = few_and_many()
    for example, other in ((few, many), (many, few)):
        traced = make_fx(choice)(example)
        torch.testing.assert_close(traced(other), choice(other), atol=WEIGHT[torch.float32], rtol=1e-5)
        gradient = torch.func.grad(lambda z: squared(z, choice))
        torch.testing.assert_close(make_fx(gradient)(example)(other), gradient(other), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("call", [entmax15, lambda z: entmax15_loss(z, torch.tensor([5, 6, 7]))], ids=["map", "loss"])
def test_a_map_and_a_loss_are_linearized(call):
    few, _ = few_and_many()
    tangent = torch.randn(few.shape, generator=torch.Generator().manual_seed(1))
    value, along = torch.func.linearize(call, few)
    expected = torch.func.jvp(call, (few,), (tangent,))
    torch.testing.assert_close((value, along(tangent)), expected)


@pytest.mark.parametrize("length", [40, 5000])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.torch.jit.trace:DeprecationWarning")
def test_thresholds_are_traced_and_compiled(length):
    few, many = (z[:, :length].contiguous() for z in few_and_many())
    compiled = torch.compile(entmax_threshold, backend="aot_eager", fullgraph=True)
    traced = torch.jit.trace(lambda z: entmax_threshold(z), (few,), check_trace=False)
    for call in (compiled, traced, make_fx(lambda z: entmax_threshold(z))(few)):
        torch.testing.assert_close(call(many), entmax_threshold(many), atol=1e-6, rtol=1e-5)
    assert entmax_threshold(few.to("meta")).shape == (3, 1)


def test_shapes_alone_are_worked_out():
    with FakeTensorMode():
        z = torch.empty(3, 5000, requires_grad=True)
        loss = entmax15_loss(z, torch.zeros(3, dtype=torch.int64))
        loss.backward()
        assert entmax15(z).shape == z.grad.shape == (3, 5000)
