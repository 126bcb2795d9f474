"""Attention under a credit against a slow, obvious version: one row, one query at a time, by bisection in float64."""

import pytest
import torch

from hf_sparse.attention import constrained_attention
from hf_sparse.functional import csoftmax, csparsemax, get_map
from tests.reference import clipped_by_bisection
from tests.tolerances import WEIGHT

BOTH = pytest.mark.parametrize("name", ["csoftmax", "csparsemax"])
INCREASING = {"csoftmax": torch.exp, "csparsemax": lambda t: t.clamp(min=0)}


def slowly(name, z, credit, c, shared=False, spending=None):
    """(batch, heads, queries, keys) weights; credit (batch, heads or 1, keys)."""
    p = torch.zeros_like(z)
    for row in range(z.shape[0]):
        u = credit[row].clone()
        for t in range(z.shape[2]):
            for head in range(z.shape[1]):
                own = u[0 if shared else head]
                seen = [j for j in range(z.shape[3]) if z[row, head, t, j] > -torch.inf]
                lifted = torch.stack([z[row, head, t, j] + (c * own[j] if own[j] < torch.inf else 0) for j in seen])
                p[row, head, t, seen] = clipped_by_bisection(INCREASING[name], lifted, own[seen])
            if spending is None or spending[row, t]:
                u = (u - (p[row, :, t].mean(0, keepdim=True) if shared else p[row, :, t])).clamp(min=0)
    return p


def problem(seed, shape=(2, 2, 4, 4), fertility=1.0, sink=True, shared=False, masked=True):
    """Scores with a masked key and, as a last key, a sink without a bound; fertilities around ``fertility``."""
    generator = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)
    heads = 1 if shared else shape[1]
    credit = fertility * (0.75 + 0.5 * torch.rand(shape[0], heads, shape[3], generator=generator, dtype=torch.float64))
    if masked:
        z[1, :, :, 0] = -torch.inf
    if sink:
        credit[..., -1] = torch.inf
    return z, credit


CASES = [
    {},
    {"exhaustion": 0.3},
    {"shared": True},
    {"shared": True, "exhaustion": 0.3},
    {"exhaustion": 0.3, "spending": torch.tensor([[True] * 4, [False, False, True, True]])},
]


@BOTH
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case) or "plain")
@pytest.mark.parametrize("seed", range(2))
def test_weights_and_gradients_are_those_of_the_slow_version(name, case, seed):
    z, credit = problem(seed, shared=case.get("shared", False))
    c, options = case.get("exhaustion", 0.0), {key: case[key] for key in ("shared", "spending") if key in case}
    z.requires_grad_()
    credit.requires_grad_()
    p = constrained_attention(get_map(name).bounds, z, credit, c, **options)
    expected = slowly(name, z.detach(), credit.detach(), c, **options)
    torch.testing.assert_close(p, expected, atol=WEIGHT[torch.float64], rtol=0)

    generator = torch.Generator().manual_seed(seed + 100)
    upstream, along, of_credit = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in (p.shape, z.shape, credit.shape)
    )
    dz, du = torch.autograd.grad(p, (z, credit), upstream)
    assert bool((dz[1, :, :, 0] == 0).all())  # a masked key
    step = 1e-6
    ends = [
        (slowly(name, z.detach() + s * along, credit.detach() + s * of_credit, c, **options) * upstream).sum()
        for s in (step, -step)
    ]
    slope = (dz * along).sum() + (du * of_credit).sum()
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / (2 * step), atol=1e-6, rtol=1e-6)


@BOTH
@pytest.mark.parametrize("case", [{}, {"exhaustion": torch.tensor([[0.2], [0.6]], dtype=torch.float64)}], ids=str)
def test_gradcheck_where_the_credit_is_used_up_to_the_last(name, case):
    # As many words as steps, fertility 1: the last step has no choice, and its weights are what the others left.
    z, _ = problem(4, (1, 2, 4, 4), masked=False)
    assert torch.autograd.gradcheck(
        lambda z: constrained_attention(get_map(name).bounds, z, torch.ones(4).double(), **case), z.requires_grad_()
    )


@BOTH
def test_a_weight_alone_at_its_bound_has_no_direction_to_move_in(name):
    credit = torch.ones(3, dtype=torch.float64, requires_grad=True)
    z = torch.tensor([[[[60.0, 0, 0]]]], dtype=torch.float64)
    p = constrained_attention(get_map(name).bounds, z, credit * torch.tensor([1.0, 0.0, 0.0]).double())
    p.mul(torch.tensor([3.0, 1.0, 2.0])).sum().backward()
    assert p.tolist() == [[[[1, 0, 0]]]]
    assert float(credit.grad[0]) == 0


@BOTH
def test_exhaustion_by_head_is_each_heads_own(name):
    z, credit = problem(5)
    both = constrained_attention(get_map(name).bounds, z, credit, torch.tensor([[0.0], [0.7]], dtype=torch.float64))
    for head, c in enumerate((0.0, 0.7)):
        alone = constrained_attention(get_map(name).bounds, z, credit, c)
        torch.testing.assert_close(both[:, head], alone[:, head], atol=1e-12, rtol=0)


@BOTH
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("fertility", [0.8, 1.7, 2.6, 50.0], ids=["binds", "binds later", "binds late", "never"])
def test_the_fast_path_is_the_path_in_turn_in_weights_and_gradients(name, shared, fertility):
    z, credit = problem(6, (2, 2, 7, 5), fertility, shared=shared)
    upstream = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    results = []
    for exhaustion in (0.0, torch.zeros(2, 1, dtype=torch.float64)):  # a tensor is never looked at for being zero
        leaves = z.clone().requires_grad_(), credit.clone().requires_grad_()
        p = constrained_attention(get_map(name).bounds, *leaves, exhaustion, shared=shared)
        gradients = torch.autograd.grad(p, leaves, upstream, allow_unused=True)
        results.append((p, gradients[0], torch.zeros_like(credit) if gradients[1] is None else gradients[1]))
    (p, dz, du), (p_in_turn, dz_in_turn, du_in_turn) = results
    torch.testing.assert_close(p, p_in_turn, atol=1e-12, rtol=0)
    torch.testing.assert_close(dz, dz_in_turn, atol=1e-10, rtol=0)
    torch.testing.assert_close(du, du_in_turn, atol=1e-10, rtol=0)


def test_without_a_binding_bound_nothing_is_computed_in_turn(monkeypatch):
    bounds = get_map("csparsemax").bounds
    z, credit = problem(7, fertility=50.0)
    never = type("Never", (), {"unbounded": staticmethod(bounds.unbounded), "slope": None, "rows": None})
    assert torch.equal(constrained_attention(never, z, credit), bounds.unbounded(z))


@BOTH
def test_detached_bounds_are_constants_of_the_backward_pass(name):
    z, credit = problem(8)
    z.requires_grad_()
    function = {"csoftmax": csoftmax, "csparsemax": csparsemax}[name]
    upstream = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p = constrained_attention(get_map(name).bounds, z, credit, 0.3, detach=True)
    u, rows = credit, []
    for t in range(z.shape[2]):
        rows.append(function(z[:, :, t] + 0.3 * torch.where(u.isfinite(), u, 0), u))
        u = (u - rows[-1]).detach().clamp(min=0)
    torch.testing.assert_close(p, torch.stack(rows, 2))
    (dz,) = torch.autograd.grad(p, z, upstream)
    torch.testing.assert_close(dz, torch.autograd.grad(torch.stack(rows, 2), z, upstream)[0])
    full = constrained_attention(get_map(name).bounds, z, credit, 0.3)
    assert not torch.allclose(dz, torch.autograd.grad(full, z, upstream)[0])


@BOTH
def test_half_precision_is_computed_in_float32_and_a_masked_row_is_zero(name):
    z, credit = problem(9)
    z[0, 0, 2] = -torch.inf
    z = z.bfloat16().requires_grad_()
    p = constrained_attention(get_map(name).bounds, z, credit, 0.2)
    assert p.dtype == torch.bfloat16
    assert torch.equal(p, constrained_attention(get_map(name).bounds, z.float(), credit.float(), 0.2).bfloat16())
    assert bool((p[0, 0, 2] == 0).all())
    p.sum().backward()
    assert bool(z.grad.isfinite().all())


@BOTH
def test_nan_stays_with_its_sentence_and_head(name):
    z, credit = problem(10)
    expected = constrained_attention(get_map(name).bounds, z, credit, 0.2)
    z[0, 1, 1, 2] = torch.nan
    p = constrained_attention(get_map(name).bounds, z, credit, 0.2)
    assert bool(p[0, 1, 1].isnan().all())
    torch.testing.assert_close(p[1], expected[1])
    torch.testing.assert_close(p[0, 0], expected[0, 0])


@BOTH
@pytest.mark.parametrize("exhaustion", [0.0, 0.2])
def test_credit_that_runs_out_is_refused_by_sentence_step_and_amount(name, exhaustion):
    z = torch.zeros(2, 1, 4, 3)
    credit = torch.tensor([[[2.0, 2, 2]], [[1.0, 1.0, 0.5]]])  # the first step is free, the second bound, the third no
    message = r"step 7 of sentence 1 \(both counted from 0\).* a credit of 0\.5 in all, 0\.5 short of the 1"
    with pytest.raises(ValueError, match=message):
        constrained_attention(get_map(name).bounds, z, credit, exhaustion, first_step=5)
    z[1, :, :, 1] = -torch.inf
    with pytest.raises(ValueError, match="step 6 of sentence 1 "):
        constrained_attention(get_map(name).bounds, z, credit, exhaustion, first_step=5)
    with pytest.raises(ValueError, match="a credit in head 1 of"):
        constrained_attention(get_map(name).bounds, z.expand(2, 2, 4, 3), torch.tensor([[9.0], [0.5]]), exhaustion)


def test_the_backward_pass_keeps_the_weights_and_a_byte_for_each():
    z, credit = problem(11, (2, 4, 40, 30))
    sizes = {}

    def note(x):
        sizes[x.data_ptr()] = x.numel() * x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        constrained_attention(get_map("csparsemax").bounds, z.float().requires_grad_(), credit.float(), 0.2)
    assert sum(sizes.values()) < 5.2 * z.numel()
