"""Maps against torch.softmax and the entmax package."""

from __future__ import annotations

from functools import partial

import entmax as package
import torch

from hf_sparse import kernels
from hf_sparse.functional import entmax15, sparsemax

from ._case import Case
from ._floor import NAME as FLOOR
from ._floor import map_floor
from ._impls import impls, kernel
from ._inputs import logits
from ._parts import attention_parts, output_map_parts
from ._step import map_step


def output_map(num_rows: int = 256, num_classes: int = 50_000) -> Case:
    z = logits("trained", num_rows, num_classes)
    upstream = torch.randn(z.shape, generator=torch.Generator().manual_seed(2))
    ours, targets = impls({"entmax15": entmax15, "sparsemax": sparsemax}, {"entmax15": 1.0}, {"entmax15": 0.5})
    maps = {
        "softmax": partial(torch.softmax, dim=-1),
        **ours,
        FLOOR: map_floor,
        "entmax package: entmax15, k=100": partial(package.entmax15, k=100),
    }
    return Case(
        title=f"map, forward + backward, {num_rows} x {num_classes}, trained",
        baseline="softmax",
        candidates={name: map_step(function, z, upstream) for name, function in maps.items()},
        targets=targets,
        parts=output_map_parts("entmax15", z, 1.5),
    )


def attention_map(length: int, num_heads: int) -> Case:
    z = torch.randn(1, num_heads, length, length, generator=torch.Generator().manual_seed(3))
    upstream = torch.randn(z.shape, generator=torch.Generator().manual_seed(4))
    ours, targets = impls({"entmax15": entmax15, "sparsemax": sparsemax}, {"entmax15": 5.0}, {"entmax15": 1.9})
    maps = {
        "softmax": partial(torch.softmax, dim=-1),
        **ours,
        "entmax package: entmax15": package.entmax15,
    }
    return Case(
        title=f"attention map, forward + backward, {num_heads} heads, T = {length}",
        baseline="softmax",
        candidates={name: map_step(function, z, upstream) for name, function in maps.items()},
        targets=targets,
        parts=attention_parts("entmax15", z, upstream, 1.5),
        rounds=5,
    )


def decode_map(num_classes: int = 50_000) -> Case:
    z = logits("trained", 1, num_classes)
    ours, targets = impls(
        {"entmax15": entmax15, "sparsemax": sparsemax},
        {"entmax15": 3.0, "sparsemax": 3.0},
        {"entmax15": 0.4, "sparsemax": 0.4},
    )
    maps = {
        "softmax": partial(torch.softmax, dim=-1),
        **ours,
        "entmax package: entmax15, k=100": partial(package.entmax15, k=100),
    }

    def forward(function):
        def call() -> None:
            with torch.no_grad():
                for _ in range(20):
                    function(z)

        return call

    parts = {}
    if kernel():
        for name, alpha in (("entmax15, cpp", 1.5), ("sparsemax, cpp", 2.0)):
            alone = partial(kernels.entmax_weights, alpha=alpha, exponent=1 / (alpha - 1))
            parts[name] = {"kernel without checks": forward(alone)}

    return Case(
        title=f"decode map, forward, 1 x {num_classes}, one thread, 20 calls",
        baseline="softmax",
        candidates={name: forward(function) for name, function in maps.items()},
        targets=targets,
        parts=parts,
        threads=1,
    )


ATTENTION_SHAPES = ((128, 64), (512, 16), (2048, 4))
CASES = [output_map, *(partial(attention_map, *shape) for shape in ATTENTION_SHAPES), decode_map]
QUICK = [partial(attention_map, 16, 2), partial(decode_map, 2000)]
