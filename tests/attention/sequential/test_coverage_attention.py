"""Attention with coverage vectors against a slow, obvious version: one row, one query, one key at a time."""

import pytest
import torch
from torch import nn

from hf_sparse.attention.interface import sparse_attention
from hf_sparse.attention.sequential._coverage import covered_attention
from hf_sparse.attention.site import SITE, AttentionSite
from hf_sparse.config import MapConfig
from hf_sparse.config.settings import CoverageVectors
from hf_sparse.functional import get_map
from tests.reference import clipped_by_bisection
from tests.tolerances import WEIGHT


def by_bisection(name, z):
    """Weights of one row: both maps are those of the bisection with bounds of 1, which no weight exceeds."""
    increasing = {"softmax": torch.exp, "sparsemax": lambda t: t.clamp(min=0)}[name]
    return clipped_by_bisection(increasing, z, torch.ones_like(z))


def slowly(name, q, k, v, vectors, mask, spending, scaling):
    """(batch, queries, heads, value_dim) outputs: every key moved along its vector, one row, one query at a time."""
    out = q.new_zeros(*q.shape[:3], v.shape[-1])
    group = q.shape[1] // k.shape[1]
    for row in range(q.shape[0]):
        seen = mask[row].nonzero()[:, 0].tolist()
        for head in range(q.shape[1]):
            received = dict.fromkeys(seen, 0.0)
            for t in range(q.shape[2]):
                keys = [k[row, head // group, j] + received[j] * vectors[head] for j in seen]
                p = by_bisection(name, torch.stack([scaling * (q[row, head, t] * key).sum() for key in keys]))
                out[row, head, t] = sum(weight * v[row, head // group, j] for weight, j in zip(p, seen))
                if spending[row, t]:
                    received = {j: received[j] + float(weight) for j, weight in zip(seen, p)}
    return out.transpose(1, 2)


def problem(heads=2, key_heads=1, seed=0):
    """A module with a site, and queries, keys, values, vectors, and masks of source and target."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (2, heads, 5, 3), "k": (2, key_heads, 6, 3), "v": (2, key_heads, 6, 2), "vectors": (heads, 3)}
    leaves = {n: 1.5 * torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    mask = torch.tensor([[True] * 6, [False, True, True, True, True, False]])
    spending = torch.tensor([[True] * 5, [False, False, True, True, True]])
    return leaves, mask, spending


def quickly(name, leaves, mask, spending, scaling):
    module = nn.Module()
    coverage = CoverageVectors(*leaves["vectors"].shape)
    module.__dict__[SITE] = AttentionSite("there", "cross", MapConfig.parse(name, "attn"), coverage=coverage)
    module.sparse_coverage = lambda scores: leaves["vectors"]
    return sparse_attention(
        module, leaves["q"], leaves["k"], leaves["v"], mask[:, None, None], scaling=scaling, target_mask=spending
    )[0]


@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_output_and_gradients_are_those_of_the_slow_version(name, key_heads):
    leaves, mask, spending = problem(key_heads=key_heads)
    for leaf in leaves.values():
        leaf.requires_grad_()
    out = quickly(name, leaves, mask, spending, 0.6)
    plain = {key: leaf.detach() for key, leaf in leaves.items()}
    expected = slowly(name, **plain, mask=mask, spending=spending, scaling=0.6)
    torch.testing.assert_close(out, expected, atol=10 * WEIGHT[torch.float64], rtol=0)
    uncovered = slowly(name, **{**plain, "vectors": 0 * plain["vectors"]}, mask=mask, spending=spending, scaling=0.6)
    assert float((expected - uncovered).abs().max()) > 0.1

    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    along = {key: torch.randn(leaf.shape, generator=generator, dtype=torch.float64) for key, leaf in leaves.items()}
    gradients = dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), upstream)))
    assert bool((gradients["k"][1, :, [0, 5]] == 0).all())  # masked keys
    step = 1e-6
    ends = [
        slowly(
            name,
            **{key: leaf + s * along[key] for key, leaf in plain.items()},
            mask=mask,
            spending=spending,
            scaling=0.6,
        )
        for s in (step, -step)
    ]
    slope = sum((gradient * along[key]).sum() for key, gradient in gradients.items())
    torch.testing.assert_close(slope, ((ends[0] - ends[1]) * upstream).sum() / (2 * step), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "covering", [None, torch.tensor([[True] * 4, [False, True, True, False]])], ids=["all", "some"]
)
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15"])
def test_gradcheck_through_the_steps(name, covering):
    generator = torch.Generator().manual_seed(2)
    z, slope, received = (
        torch.rand(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((2, 2, 4, 5), (2, 2, 4, 1), (2, 2, 5))
    )
    sparse_map = get_map(name).function
    assert torch.autograd.gradcheck(lambda *x: covered_attention(sparse_map, *x, covering), (z, slope, received))


def test_half_precision_is_summed_in_float32_and_a_masked_row_is_zero():
    leaves, mask, spending = problem()
    mask[0] = False
    half = {key: leaf.bfloat16().requires_grad_() for key, leaf in leaves.items()}
    out = quickly("softmax", half, mask, spending, 0.6)
    assert out.dtype == torch.bfloat16
    assert bool((out[0] == 0).all())
    exact = quickly("softmax", {key: leaf.detach().double() for key, leaf in half.items()}, mask, spending, 0.6)
    torch.testing.assert_close(out.double(), exact, atol=0.1, rtol=0)
    out.sum().backward()
    assert all(bool(leaf.grad.isfinite().all()) for leaf in half.values())
