"""Cost per row from V = 32k to 256k: linear in V if the ratio to V = 32k does not exceed the ratio of the V's."""

from __future__ import annotations

from functools import partial

import torch

from hf_sparse.losses import entmax15_loss

from ._case import Case
from ._inputs import logits, targets
from ._step import loss_step

SIZES = (32_000, 64_000, 128_000, 256_000)


def loss_growth(num_rows: int = 64, sizes: tuple[int, ...] = SIZES) -> Case:
    steps = {
        f"entmax15, V = {size}": loss_step(entmax15_loss, logits("trained", num_rows, size), targets(num_rows, size))
        for size in sizes
    }
    parts = {
        f"entmax15, V = {size}": {"zeros of the gradient": partial(torch.zeros, num_rows, size)} for size in sizes
    }
    smallest = f"entmax15, V = {sizes[0]}"
    return Case(
        title=f"growth in V of the loss, {num_rows} rows, trained",
        baseline=smallest,
        candidates=steps,
        targets={name: size / sizes[0] for name, size in zip(steps, sizes) if name != smallest},
        parts=parts,
    )


CASES = [loss_growth]
QUICK: list = []
