"""Flash entmax is softcap, bias, mask, map and product one after the other: outputs and gradients against float64."""

import json
from pathlib import Path

import pytest
import torch

from tests.kernels.covering import pairs, pairwise
from tests.kernels.devices import DEVICE, INTERPRETED, needs_triton

pytest.importorskip("triton")

from hf_sparse.kernels.gpu import attention
from hf_sparse.kernels.gpu.attention import Tiles, attention_backward, attention_forward
from hf_sparse.kernels.gpu.scores import Scores

pytestmark = needs_triton
# Small, so that short sequences have several.
TILES = Tiles(16, 16)
# Relative to the size of the whole result.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
EXPONENTS = {2.0: 1, 1.5: 2, 4 / 3: 3, 1.25: 4}


class _Entmax(torch.autograd.Function):
    """entmax by bisection, and its derivatives as printed in the papers."""

    @staticmethod
    def forward(ctx, z, alpha):
        x = (alpha - 1) * z
        low, high = x.amax(-1, keepdim=True) - 1, x.amax(-1, keepdim=True)
        for _ in range(60):
            middle = (low + high) / 2
            heavy = (x - middle).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
            low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
        p = (x - low).clamp(min=0).pow(1 / (alpha - 1))
        p = torch.where(z.amax(-1, keepdim=True) > -1e29, p / p.sum(-1, keepdim=True), 0.0)
        ctx.save_for_backward(p, alpha)
        return p

    @staticmethod
    def backward(ctx, g):
        p, alpha = ctx.saved_tensors
        w = torch.where(p > 0, p.pow(2 - alpha), 0.0)
        q = w / w.sum(-1, keepdim=True).clamp(min=1e-300)
        h = -torch.xlogy(p, p)
        of_alpha = (p - q) / (alpha - 1) ** 2 + (h - q * h.sum(-1, keepdim=True)) / (alpha - 1)
        return w * (g - (q * g).sum(-1, keepdim=True)), (g * of_alpha).sum_to_size(alpha.shape)


def reference(q, k, v, alpha, sinks, scores):
    """Attention in float64 with every score written down; hidden keys have scores of -1e30."""
    groups = q.shape[1] // k.shape[1]
    z = q @ k.repeat_interleave(groups, 1).mT * scores.scaling
    if scores.softcap is not None:
        z = scores.softcap * torch.tanh(z / scores.softcap)
    if scores.bias is not None:
        z = z + scores.bias.double()
    query, key = torch.meshgrid(*(torch.arange(n, device=q.device) for n in z.shape[2:]), indexing="ij")
    distance = query + z.shape[3] - z.shape[2] - key
    visible = torch.ones_like(z, dtype=torch.bool)
    if scores.causal:
        visible &= distance >= 0
    if scores.window is not None:
        visible &= distance < scores.window
    if scores.mask is not None and scores.mask.dtype == torch.bool:
        visible &= scores.mask
    elif scores.mask is not None:
        visible &= scores.mask > torch.finfo(scores.mask.dtype).min / 2
        z = z + scores.mask.double().masked_fill(~visible, 0.0)
    z = z.masked_fill(~visible, -1e30)
    if sinks is not None:
        z = torch.cat([z, sinks.view(1, -1, 1, 1).expand(*z.shape[:3], 1)], -1)
    p = _Entmax.apply(z, alpha.view(1, -1, 1, 1))
    return p[..., : k.shape[2]] @ v.repeat_interleave(groups, 1)


def mask_of(kind, queries, keys, dtype):
    """Padding of the second of two sequences, (2, 1, 1, keys); else (1, 1, queries, keys), with rows hidden wholly."""
    if "padding" in kind:
        visible = torch.ones(2, 1, 1, keys, dtype=torch.bool)
        visible[1, ..., slice(keys // 4) if "left" in kind else slice(-keys // 4, None)] = False
        return visible
    visible = torch.arange(queries)[:, None] * torch.arange(keys) % 5 < 3
    visible[-3:-1] = False
    visible = visible[None, None]
    return torch.where(visible, 0.5, torch.finfo(dtype).min).to(dtype) if kind == "additive" else visible


def laid_out(x, layout):
    """x (batch, heads, length, dim) as it is in memory after a projection, or otherwise."""
    if layout == "one projection":
        batch, heads, length, dim = x.shape
        return x.new_empty(batch, length, heads, dim + 9)[..., 3 : dim + 3].transpose(1, 2).copy_(x)
    if layout == "last axis apart":
        return x.mT.contiguous().mT
    return x if layout == "contiguous" else x.transpose(1, 2).contiguous().transpose(1, 2)


def check(
    queries=40, keys=40, heads=1, key_heads=1, mask=None, bias=None, softcap=False, sinks=False, dim=16,
    value_dim=None, alpha=1.5, dtype=torch.float32, layout="transposed", size=3.0, kernels=attention, **settings,
):  # fmt: skip
    """Compare outputs and gradients of one case, as ``kernels`` computes them, with float64; returns the errors."""
    generator = torch.Generator().manual_seed(queries + keys)
    batch = 2 if "padding" in (mask or "") else 1

    def drawn(*shape):
        return laid_out(torch.randn(shape, generator=generator).to(DEVICE, dtype), layout)

    q, k = drawn(batch, heads, queries, dim) * size, drawn(batch, key_heads, keys, dim)
    v, dout = drawn(batch, key_heads, keys, value_dim or dim), drawn(batch, heads, queries, value_dim or dim)
    learned = alpha is None
    alphas = torch.linspace(1.2, 1.8, heads) if learned else torch.full((heads,), alpha)
    if sinks:
        settings["sinks"] = torch.linspace(2.5, -1.0, heads).to(DEVICE) * size
    if softcap:
        settings["softcap"] = size  # scores are of that size
    if bias is not None:
        rows = torch.linspace(0.5, 2, heads)[:, None, None] * torch.arange(queries if bias == "a pair" else 1)[:, None]
        settings["bias"] = (size * torch.sin(rows + torch.arange(keys)))[None].to(DEVICE, dtype)
    if mask is not None:
        settings["mask"] = mask_of(mask, queries, keys, dtype).to(DEVICE)
    for name in {"bias", "mask"} & settings.keys():
        settings[name] = settings[name].expand(batch, heads, queries, keys)
    scores = Scores(alphas.to(DEVICE), 0 if learned else EXPONENTS.get(alpha, 0), dim**-0.5, **settings)
    out, tau, live = kernels.attention_forward(q, k, v, scores, TILES)
    found = kernels.attention_backward(dout, q, k, v, tau, live, scores, learned, TILES)
    exact = [x.double().requires_grad_() for x in (q, k, v, scores.alpha)]
    if sinks:
        exact.append(scores.sinks.double().requires_grad_())
    expected = reference(*exact[:4], exact[4] if sinks else None, scores)
    wanted = torch.autograd.grad(expected, exact, dout.double())
    # Large scores have fewer digits after the point.
    errors, allowed = {}, TOLERANCE[dtype] * max(1, size / 10)
    for name, ours, theirs in zip(("out", "q", "k", "v", "alpha", "sinks"), (out, *found), (expected, *wanted)):
        if ours is not None:
            assert ours.dtype == (torch.float32 if name in ("alpha", "sinks") else dtype)
            # Rows with one key in their support have no gradient: what is left of it is measured by what went in.
            least = dout.double().norm() * {"k": size / 100, "alpha": 1e-4, "sinks": 1e-4}.get(name, 0.01)
            error = float(((ours.double() - theirs).norm() / theirs.norm().clamp(min=least)).detach())
            assert error < allowed * (5 if name == "alpha" else 1), f"{name}: relative error {error:.1e}"
            errors[name] = error
    return errors


# By factor and level, the arguments of ``check``. Every level is a row of the table in docs/gpu.md.
FACTORS = {
    "lengths": {
        "lengths that fill no tile": {"queries": 23, "keys": 23},
        "fewer queries than keys": {"queries": 12, "keys": 40},
        "fewer keys than queries": {"queries": 23, "keys": 12},
        "one query": {"queries": 1, "keys": 40},
    },
    "order": {"not causal": {}, "causal": {"causal": True}, "window of 10": {"causal": True, "window": 10}},
    "heads": {"one head": {}, "shared keys (4 heads to 2)": {"heads": 4, "key_heads": 2}},
    "mask": {
        "no mask": {},
        "padding on the left": {"mask": "left padding"},
        "padding on the right": {"mask": "right padding"},
        "boolean mask, hidden rows": {"mask": "boolean"},
        "additive mask": {"mask": "additive"},
    },
    "bias": {"no bias": {}, "bias of query and key": {"bias": "a pair"}, "bias of the key (ALiBi)": {"bias": "a key"}},
    "softcap": {"no softcap": {}, "softcap": {"softcap": True}},
    "sinks": {"no sinks": {}, "sinks": {"sinks": True}},
    "head dimension": {
        **{f"head dimension {dim}": {"dim": dim} for dim in (16, 72, 80, 96, 256)},
        "head dimension 24, values of 40": {"dim": 24, "value_dim": 40},
    },
    "alpha": {
        **{name: {"alpha": a} for name, a in
           {"alpha 1.5": 1.5, "alpha 2": 2.0, "alpha 4/3": 4 / 3, "alpha 1.3": 1.3}.items()},
        "an alpha a head, learned": {"alpha": None},
    },
    # tl.dot of bfloat16 is wrong in the interpreter.
    "dtype": {
        str(dtype).removeprefix("torch."): {"dtype": dtype}
        for dtype in (torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else []))
    },
    "layout": {
        "transposed views": {}, "contiguous": {"layout": "contiguous"},
        "slices of one projection": {"layout": "one projection"}, "last axis apart": {"layout": "last axis apart"},
    },
    "support": {
        "support of several keys": {}, "support of every key": {"size": 0.01}, "support of one key": {"size": 30.0},
    },
}  # fmt: skip
LEVELS = {name: settings for levels in FACTORS.values() for name, settings in levels.items()}
# Any two levels of different factors are together in one of these.
CASES = pairwise(FACTORS)


def check_case(levels, **options):
    return check(**{key: value for level in levels for key, value in LEVELS[level].items()}, **options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(name for name in case.values() if LEVELS[name]))
def test_outputs_and_gradients_are_those_of_float64(case):
    check_case(case.values())


def test_any_two_levels_meet_in_a_case():
    met = set().union(*(pairs(case.items()) for case in CASES))
    wanted = pairs((factor, level) for factor, levels in FACTORS.items() for level in levels)
    assert met == {pair for pair in wanted if len(dict(pair)) == 2}


def test_the_documented_levels_are_the_tested_ones():
    documented = json.loads((Path(__file__).parents[2] / "docs" / "gpu.json").read_text())
    assert documented["cases"].keys() - {"bfloat16"} == LEVELS.keys() - {"bfloat16"}


def test_tiles_without_support_are_passed_over():
    """Queries that look only at their own tile: live tiles lie on the diagonal, and the result is exact."""
    q = torch.eye(16, device=DEVICE).repeat_interleave(16, 0)[None, None, :64] * 30
    scores = Scores(torch.tensor([1.5], device=DEVICE), 2, 1.0)
    v = torch.arange(64.0, device=DEVICE)[:, None].expand(64, 16)[None, None]
    out, _, live = attention_forward(q, q.clone(), v, scores, TILES)
    assert torch.equal(live[0, 0], torch.eye(4, dtype=torch.int8, device=DEVICE))
    expected = v.unflatten(2, (4, 16)).mean(3, keepdim=True).expand(1, 1, 4, 16, 16).flatten(2, 3)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)


def test_weights_are_normalized_to_the_last_bit_of_float32():
    q, k = torch.randn(2, 1, 2, 40, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    ones = torch.ones_like(k)
    for alpha, exponent in ((1.5, 2), (1.1, 0)):
        scores = Scores(torch.tensor([alpha, alpha], device=DEVICE), exponent, 1.0, causal=True)
        out, _, _ = attention_forward(q, k, ones, scores, TILES)
        torch.testing.assert_close(out, ones, atol=5e-7, rtol=0)


def test_a_score_that_is_nan_or_infinite_shows_in_its_rows_alone():
    """On a GPU maxima pass over NaN, unless told not to: tests/kernels/ahead_of_time.py looks for that."""
    q, k, v = torch.randn(3, 1, 1, 40, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    scores = Scores(torch.tensor([1.5], device=DEVICE), 2, 1.0, causal=True)
    expected, _, _ = attention_forward(q, k, v, scores, TILES)
    q[..., 5, 0], q[..., 7, :], k[..., 30, 2] = torch.nan, 3e38, torch.nan
    out, _, _ = attention_forward(q, k, v, scores, TILES)
    strange = torch.tensor([5, 7, *range(30, 40)])
    assert bool(out[0, 0, strange].isnan().all())
    rest = torch.ones(40, dtype=torch.bool).index_fill(0, strange, False)
    assert torch.equal(out[0, 0, rest], expected[0, 0, rest])


@pytest.mark.skipif(not INTERPRETED, reason="four gigabytes, of a file that has none")
@pytest.mark.parametrize("far", [1, 2], ids=["heads", "keys"])
def test_places_beyond_two_to_the_31_are_found(far, tmp_path):
    step, count = 2**30, 3
    sparse = torch.from_file(str(tmp_path / "memory"), shared=True, size=step * (count - 1) + 256, dtype=torch.float16)
    shape = (1, count, 4, 16) if far == 1 else (1, 1, count, 16)
    x = sparse.as_strided(shape, (0, step, 16, 1) if far == 1 else (0, 0, step, 1))
    x.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    near = x.clone(memory_format=torch.contiguous_format)
    scores = Scores(torch.full((shape[1],), 1.5), 2, 1.0)
    results = []
    for tensor in (x, near):
        out, tau, live = attention_forward(tensor, tensor, tensor, scores, TILES)
        found = attention_backward(tensor, tensor, tensor, tensor, tau, live, scores, tiles=TILES)
        results.append((out, *found[:3]))
    assert all(torch.equal(*pair) for pair in zip(*results))


@pytest.mark.skipif(not INTERPRETED, reason="four gigabytes, of a file that has none")
def test_a_bias_may_have_more_than_two_to_the_31_entries(tmp_path):
    step, heads = 2**30, 3
    sparse = torch.from_file(str(tmp_path / "memory"), shared=True, size=step * (heads - 1) + 256, dtype=torch.float16)
    bias = sparse.as_strided((1, heads, 4, 16), (0, step, 16, 1))
    bias.copy_(torch.randn(bias.shape, generator=torch.Generator().manual_seed(0)))
    q, k, v = (torch.ones(1, heads, length, 16) for length in (4, 16, 16))
    v = v * torch.arange(16.0)[:, None]
    far, near = (Scores(torch.full((heads,), 1.5), 2, 1.0, bias=b) for b in (bias, bias.clone()))
    assert torch.equal(*(attention_forward(q, k, v, scores, TILES)[0] for scores in (far, near)))
