"""Maps of short rows, taken apart: steps to the threshold, and what comes after."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from hf_sparse.functional import entmax
from hf_sparse.functional.newton import _look, dtype_for, exponent_of, solve_with_powers
from hf_sparse.functional.rows import by_chunks

from ._case import Case
from ._impls import impls
from ._parts import attention_parts
from ._step import map_step
from .density import MAP_TARGETS, SHAPES, scores

ALPHAS = (1.02, 1.1, 1.3, 1.75)
_SHARE = 0.25


def attention_map(alpha: float, *shape: int) -> Case:
    z = scores(alpha, _SHARE, shape)
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    name = f"entmax {alpha:g}"
    ours, targets = impls(
        {name: partial(entmax, alpha=alpha)}, {name: MAP_TARGETS["torch"]}, {name: MAP_TARGETS["auto"]}
    )
    maps = {"softmax": partial(torch.softmax, dim=-1), **ours}
    candidates: dict[str, Callable[[], object]] = {
        each: map_step(function, z, upstream) for each, function in maps.items()
    }
    parts = {each: dict(pieces) for each, pieces in attention_parts(name, z, upstream, alpha).items()}
    if dtype_for(alpha, z) == z.dtype:  # closer to 1 there are no steps but those of ``near_softmax``
        u, exponent = (z - z.amax(-1, keepdim=True)).mul_(alpha - 1).add_(1).clamp_(min=0), exponent_of(alpha)
        candidates[f"one step of {name}, torch"] = partial(by_chunks, lambda u, _: _look(u, exponent), u)
        del parts[name]["weights"]
        parts[name]["steps"] = partial(by_chunks, lambda u, out: solve_with_powers(out.copy_(u), exponent), u)
    return Case(
        title=f"attention map, {' x '.join(map(str, shape))}, {_SHARE:.0%} in the support",
        baseline="softmax",
        candidates=candidates,
        targets=targets,
        parts=parts,
        rounds=5,
        threads=1,
    )


CASES = [partial(attention_map, alpha, *shape) for shape in SHAPES for alpha in ALPHAS]
QUICK = [partial(attention_map, 1.75, 1, 2, 16, 16)]
