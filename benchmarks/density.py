"""No cliffs: losses and maps from alpha = 1 to 2 at any share of the row in the support, forward and backward."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_sparse.functional import entmax
from hf_sparse.losses import alpha_relu_loss, entmax_loss

from ._case import Case
from ._impls import kernel
from ._inputs import targets
from ._step import loss_step, map_step

ALPHAS = (1.0, 1.001, 1.02, 1.05, 1.1, 1.25, 1.5, 1.75, 2.0)
DENSITIES = (1e-4, 1e-2, 0.1, 0.25, 0.5, 1.0)
SHAPES = ((4, 12, 128, 128), (4, 12, 512, 512))
# Of cross-entropy and softmax in the same run: in torch, and with the C++ kernel.
LOSS_TARGETS = {"torch": 4.0, "auto": 1.0}
MAP_TARGETS = {"torch": 5.0, "auto": 2.0}
SOFTMAX_TARGET = 1.05


def scores(alpha: float, density: float, shape: tuple[int, ...]) -> Tensor:
    """Gaussian scores of the deviation at which that share of a row is in the support of entmax."""
    z = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    few = z.view(-1, shape[-1])[:2]
    low, high = 1e-6, 1e6
    for _ in range(40):
        middle = (low * high) ** 0.5
        share = float((entmax(few * middle, alpha) > 0).float().mean())
        low, high = (middle, high) if share >= density else (low, middle)
    return z * low


def impls_with(targets_of: dict[str, float]) -> list[str]:
    return [impl for impl in targets_of if impl == "torch" or kernel()]


def loss_case(
    alpha: float, density: float, dtype: torch.dtype, num_rows: int = 256, num_classes: int = 50_257
) -> Case:
    z, y = scores(alpha, density, (num_rows, num_classes)).to(dtype), targets(num_rows, num_classes)
    losses = {impl: partial(entmax_loss, alpha=alpha, impl=impl) for impl in impls_with(LOSS_TARGETS)}
    return Case(
        title=f"entmax loss, {num_rows} x {num_classes}, {_words(alpha, density, dtype)}",
        baseline="cross_entropy",
        candidates={n: loss_step(loss, z, y) for n, loss in {"cross_entropy": F.cross_entropy, **losses}.items()},
        targets=LOSS_TARGETS,
        rounds=5,
    )


def relu_case(
    alpha: float, density: float, dtype: torch.dtype, num_rows: int = 256, num_classes: int = 50_257
) -> Case:
    z, y = (
        torch.randn(num_rows, num_classes, generator=torch.Generator().manual_seed(0)),
        targets(num_rows, num_classes),
    )
    rank = max(1, min(num_classes, round((1 - density) * num_classes)))
    # u of the largest class is about 1, whatever the share above the threshold: the scores are scaled to that.
    cut = float(z[0].kthvalue(rank).values) if density < 1 else float(z.min()) - 1.0
    z = (z - cut) / (z.max() - cut) / (alpha - 1)
    losses = {impl: partial(alpha_relu_loss, alpha=alpha, tau=0.0, impl=impl) for impl in impls_with(LOSS_TARGETS)}
    return Case(
        title=f"alpha-ReLU loss, {num_rows} x {num_classes}, {_words(alpha, density, dtype)}",
        baseline="cross_entropy",
        candidates={
            n: loss_step(loss, z.to(dtype), y) for n, loss in {"cross_entropy": F.cross_entropy, **losses}.items()
        },
        targets=LOSS_TARGETS,
        rounds=5,
    )


def map_case(alpha: float, density: float, dtype: torch.dtype, shape: tuple[int, ...]) -> Case:
    future = torch.ones(shape[-2:], dtype=torch.bool).triu(1)
    z = scores(alpha, density, shape).masked_fill(future, -torch.inf).to(dtype)
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    # At alpha = 1 there is nothing for a kernel to do.
    maps = {impl: partial(entmax, alpha=alpha, impl=impl if alpha > 1 else "auto") for impl in impls_with(MAP_TARGETS)}
    return Case(
        title=f"attention map, {' x '.join(map(str, shape))}, causal, {_words(alpha, density, dtype)}",
        baseline="softmax",
        candidates={
            n: map_step(function, z, upstream)
            for n, function in {"softmax": partial(torch.softmax, dim=-1), **maps}.items()
        },
        targets=MAP_TARGETS if alpha > 1 else dict.fromkeys(MAP_TARGETS, SOFTMAX_TARGET),
        rounds=5,
    )


def _words(alpha: float, density: float, dtype: torch.dtype) -> str:
    return f"alpha {alpha:g}, {density:.2%} in the support, {str(dtype).removeprefix('torch.')}"


def _grid(build, alphas: tuple[float, ...], densities: tuple[float, ...], *rest: object) -> list:
    return [
        partial(build, alpha, density, dtype, *rest)
        for dtype in (torch.float32, torch.bfloat16)
        for alpha in alphas
        for density in densities
    ]


# Softmax has the whole row in its support, whatever the scores.
CASES = [
    *_grid(loss_case, ALPHAS[:1], DENSITIES[-1:]),
    *_grid(loss_case, ALPHAS[1:], DENSITIES),
    *_grid(relu_case, ALPHAS[1:], DENSITIES),
    *(case for shape in SHAPES for case in _grid(map_case, ALPHAS[:1], DENSITIES[-1:], shape)),
    *(case for shape in SHAPES for case in _grid(map_case, ALPHAS[1:], DENSITIES[1::2], shape)),
]
QUICK = [
    partial(loss_case, 1.5, 0.5, torch.float32, 4, 2000),
    partial(relu_case, 1.5, 0.5, torch.bfloat16, 4, 2000),
    partial(map_case, 1.0, 1.0, torch.float32, (1, 2, 16, 16)),
]
