"""Attention under a credit, query by query, against softmax over the same scores: time, and what is kept meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from weakref import WeakSet

import torch
from torch import Tensor

from hf_sparse.attention import constrained_attention
from hf_sparse.functional import get_map

from ._case import Case, Row
from ._step import map_step

# Sentences, heads, target words, source words.
SHAPES = ((32, 8, 30, 30), (8, 8, 128, 128))


def scores(num_rows: int, num_heads: int, num_queries: int, num_keys: int) -> Tensor:
    """With a sink as the last column."""
    generator = torch.Generator().manual_seed(5)
    return 1.5 * torch.randn(num_rows, num_heads, num_queries, num_keys + 1, generator=generator)


def functions(num_keys: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Softmax and, by name, both maps under fertility 2: encouraged, as they are, detached, and where none binds."""
    credit = torch.full((num_keys + 1,), 2.0)
    credit[-1] = torch.inf
    found: dict[str, Callable[[Tensor], Tensor]] = {"softmax": partial(torch.softmax, dim=-1)}
    for name in ("csoftmax", "csparsemax"):
        run = partial(constrained_attention, get_map(name).bounds)
        found |= {
            f"{name}, c = 0.2": lambda z, run=run: run(z, credit, 0.2),
            f"{name}, c = 0.2, detached": lambda z, run=run: run(z, credit, 0.2, detach=True),
            f"{name}, c = 0": lambda z, run=run: run(z, credit),
            f"{name}, no bound binds": lambda z, run=run: run(z, 1000 * credit),
        }
    return found


def title(num_rows: int, num_heads: int, num_queries: int, num_keys: int) -> str:
    return f"constrained attention, {num_rows} x {num_heads} heads, {num_queries} queries, {num_keys} keys and a sink"


def attention(*shape: int) -> Case:
    z = scores(*shape)
    upstream = torch.randn(z.shape, generator=torch.Generator().manual_seed(6))
    return Case(
        title=f"{title(*shape)}, forward + backward",
        baseline="softmax",
        candidates={name: map_step(function, z, upstream) for name, function in functions(shape[-1]).items()},
        rounds=5,
    )


class Kept:
    """A tensor that the backward pass waits for."""

    def __init__(self, x: Tensor) -> None:
        self.x = x.detach()  # a result that holds what it was made from would live on


def kept_mb(function: Callable[[Tensor], Tensor], z: Tensor) -> float:
    """What the forward pass keeps for the backward pass, in MB (10^6 bytes)."""
    alive: WeakSet[Kept] = WeakSet()

    def pack(x: Tensor) -> Kept:
        kept = Kept(x)
        alive.add(kept)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.x):
        weights = function(z.requires_grad_())
    sizes = {kept.x.untyped_storage().data_ptr(): kept.x.untyped_storage().nbytes() for kept in alive}
    del weights  # only now: what is kept lives as long as the result
    return sum(sizes.values()) / 1e6


def memory_rows(shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[Row]:
    """The memory that each function keeps, as a ratio to softmax."""
    found = []
    for shape in shapes:
        kept = {name: kept_mb(function, scores(*shape)) for name, function in functions(shape[-1]).items()}
        for name, size in kept.items():
            ratio = size / kept["softmax"]
            case = f"kept for the backward pass, {title(*shape)}"
            found.append(Row(case, name, size, "MB", "softmax", ratio, (ratio, ratio), None, 1, 0))
    return found


CASES = [partial(attention, *shape) for shape in SHAPES]
QUICK = [partial(attention, 2, 2, 4, 5)]
