"""Attention maps with an alpha for each head that is learned: gradients by the scores and by the alphas."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hf_sparse.functional import entmax

from ._case import Case
from ._step import map_step
from .density import MAP_TARGETS, impls_with

SHAPES = ((4, 12, 128, 128), (2, 12, 512, 512))


def learned_alphas(*shape: int) -> Case:
    z = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    z = z.masked_fill(torch.ones(shape[-2:]).tril() == 0, -torch.inf)
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    alphas = torch.linspace(1.1, 1.9, shape[1])[:, None, None]

    def learned(z: Tensor, impl: str) -> Tensor:
        return entmax(z, alphas.detach().requires_grad_(), impl=impl)

    impls = {impl: partial(learned, impl=impl) for impl in impls_with(MAP_TARGETS)}
    maps = {"softmax": partial(torch.softmax, dim=-1), **impls}
    return Case(
        title=f"attention map, {' x '.join(map(str, shape))}, causal, an alpha for each head from 1.1 to 1.9",
        baseline="softmax",
        candidates={name: map_step(function, z, upstream) for name, function in maps.items()},
        targets=MAP_TARGETS,
        rounds=3,
    )


CASES = [partial(learned_alphas, *shape) for shape in SHAPES]
QUICK = [partial(learned_alphas, 1, 2, 16, 16)]
