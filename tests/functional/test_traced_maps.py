"""torch.jit.trace keeps no step that only the values of its example called for."""

import pytest
import torch

from hf_sparse.config import MapConfig
from hf_sparse.functional import MAPS
from hf_sparse.losses import entmax15_loss
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
