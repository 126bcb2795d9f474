"""Cases of attention, each held to float64, for every kernel that computes attention without its weights."""

import torch

from hf_sparse.kernels import Scores
from tests.kernels.covering import pairwise
from tests.kernels.devices import DEVICE

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
    forward, backward, device=DEVICE, queries=40, keys=40, heads=1, key_heads=1, mask=None, bias=None, softcap=False,
    sinks=False, dim=16, value_dim=None, alpha=1.5, dtype=torch.float32, layout="transposed", size=3.0, **settings,
):  # fmt: skip
    """Compare outputs and gradients of one case with float64; returns the errors.

    Args:
        forward: (q, k, v, scores) -> (out, tensors that backward wants).
        backward: (dout, q, k, v, those tensors, scores, whether alpha is learned) -> gradients.
        device: where the kernels run.
    """
    generator = torch.Generator().manual_seed(queries + keys)
    batch = 2 if "padding" in (mask or "") else 1

    def drawn(*shape):
        return laid_out(torch.randn(shape, generator=generator).to(device, dtype), layout)

    q, k = drawn(batch, heads, queries, dim) * size, drawn(batch, key_heads, keys, dim)
    v, dout = drawn(batch, key_heads, keys, value_dim or dim), drawn(batch, heads, queries, value_dim or dim)
    learned = alpha is None
    # Above 1.5 the slope u^(P - 1) of a weight has no bound where it leaves zero: one rounding of a score of 60 is a
    # thousandth of the gradient of a query, wherever the kernel's sums round otherwise.
    alphas = torch.linspace(1.2, 1.5, heads) if learned else torch.full((heads,), alpha)
    if sinks:
        settings["sinks"] = torch.linspace(2.5, -1.0, heads).to(device) * size
    if softcap:
        settings["softcap"] = size  # scores are of that size
    if bias is not None:
        rows = torch.linspace(0.5, 2, heads)[:, None, None] * torch.arange(queries if bias == "a pair" else 1)[:, None]
        settings["bias"] = (size * torch.sin(rows + torch.arange(keys)))[None].to(device, dtype)
    if mask is not None:
        settings["mask"] = mask_of(mask, queries, keys, dtype).to(device)
    for name in {"bias", "mask"} & settings.keys():
        settings[name] = settings[name].expand(batch, heads, queries, keys)
    scores = Scores(alphas.to(device), 0 if learned else EXPONENTS.get(alpha, 0), dim**-0.5, **settings)
    out, saved = forward(q, k, v, scores)
    found = backward(dout, q, k, v, saved, scores, learned)
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


def check_large_soft_cap(forward, ratio, device=DEVICE, keys=64):
    """Weights, where scores are some ``ratio`` of the soft cap, have the rounding of the scores and not of the cap.

    Args:
        forward: as for ``check``.
    """
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, n, 16, generator=generator).to(device) for n in (3, keys))
    alpha = torch.full((2,), 2.0, device=device)
    scores = Scores(alpha, 1, 50 * ratio * 16**-0.5, softcap=50.0)
    weights, _ = forward(q, k, torch.eye(keys, device=device).expand(1, 2, -1, -1), scores)
    capped = 50 * torch.tanh(scores.scaling / 50 * q.double() @ k.double().mT)
    allowed = 2e-7 + 4e-7 * float(capped.abs().max())
    expected = _Entmax.apply(capped, alpha.double().view(-1, 1, 1))
    torch.testing.assert_close(weights.double(), expected, atol=allowed, rtol=0)


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


def check_case(levels, *kernels, **options):
    return check(*kernels, **{key: value for level in levels for key, value in LEVELS[level].items()}, **options)
