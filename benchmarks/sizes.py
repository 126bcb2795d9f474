"""Losses of few classes and of many: rows that stay in cache, where cross-entropy does not wait for memory either."""

from __future__ import annotations

from functools import partial

import torch

from .density import loss_case, relu_case

ALPHAS = (1.1, 1.5, 1.75, 2.0)
DENSITIES = (0.03, 0.3, 1.0)
SHAPES = ((1024, 100), (1024, 300), (256, 1000), (256, 8000), (64, 32_000), (16, 128_256))

CASES = [
    partial(case, alpha, density, dtype, *shape)
    for case in (loss_case, relu_case)
    for shape in SHAPES
    for dtype in (torch.float32, torch.bfloat16)
    for alpha in ALPHAS
    for density in DENSITIES
]
QUICK = [partial(case, 1.5, 0.5, torch.float32, 8, 100) for case in (loss_case, relu_case)]
