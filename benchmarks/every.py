"""Every map on scores of attention, and log-probabilities with their gradient, against softmax and log-softmax."""

from __future__ import annotations

from functools import partial

import torch

from hf_sparse.config import MapConfig
from hf_sparse.functional import MAPS
from hf_sparse.model.distribution import log_distribution

from ._case import Case
from ._inputs import logits
from ._step import map_step
from .density import MAP_TARGETS

SHAPES = ((4, 12, 128, 128), (2, 12, 512, 512))
_SETTINGS = {"alpha_relu": {"alpha": 1.5, "tau": 0.5}}


def attention_maps(dtype: torch.dtype, *shape: int) -> Case:
    """All maps but those under bounds, which ``constrained`` has; scores are positive for maps that ask for it."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.ones(shape[-2:]).tril() == 0
    z = torch.randn(shape, generator=generator).to(dtype)
    upstream = torch.randn(shape, generator=generator).to(dtype)
    steps = {"softmax": map_step(partial(torch.softmax, dim=-1), z.masked_fill(hidden, -torch.inf), upstream)}
    for name, each in MAPS.items():
        if name != "softmax" and each.bounds is None:
            scores = (z if each.any_scores else z.abs() + 0.01).masked_fill(hidden, -torch.inf)
            steps[name] = map_step(partial(each.function, **_SETTINGS.get(name, {})), scores, upstream)
    return Case(
        title=f"attention map, {' x '.join(map(str, shape))}, causal, {_name(dtype)}",
        baseline="softmax",
        candidates=steps,
        targets=dict.fromkeys(("alpha_relu", "entmax", "entmax15", "sparsemax"), MAP_TARGETS["auto"]),
        rounds=5,
        threads=1,
    )


def log_probabilities(dtype: torch.dtype, num_rows: int = 256, num_classes: int = 50_257) -> Case:
    """What a call of a model without labels returns, where a trainer of preferences or rewards differentiates it."""
    z = logits("0.3", num_rows, num_classes).to(dtype)
    upstream = torch.zeros(num_rows, num_classes).index_fill_(1, torch.tensor([7]), 1.0)
    heads = {
        "entmax 1.5": {"name": "entmax", "alpha": 1.5},
        "entmax 1.3": {"name": "entmax", "alpha": 1.3},
        "sparsemax": {"name": "sparsemax"},
        "alpha-ReLU": {"name": "alpha_relu", "alpha": 1.5, "tau": 0.5},
    }
    maps = {"log_softmax": lambda z: torch.log_softmax(z.float(), -1)}
    maps |= {name: partial(log_distribution, MapConfig.parse(head, "head")) for name, head in heads.items()}
    return Case(
        title=f"log-probabilities, forward + backward, {num_rows} x {num_classes}, {_name(dtype)}",
        baseline="log_softmax",
        candidates={name: map_step(function, z, upstream) for name, function in maps.items()},
        rounds=5,
        threads=1,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_DTYPES = (torch.float32, torch.bfloat16)
CASES = [
    *(partial(attention_maps, dtype, *shape) for shape in SHAPES for dtype in _DTYPES),
    *(partial(log_probabilities, dtype) for dtype in _DTYPES),
]
QUICK = [partial(attention_maps, torch.float32, 1, 2, 16, 16), partial(log_probabilities, torch.float32, 4, 300)]
