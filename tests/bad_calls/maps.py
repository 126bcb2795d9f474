"""Values that are no map and no choice of attention."""

from __future__ import annotations

import random
from typing import Any

import torch

from hf_sparse import functional
from tests.bad_calls.calls import INF, NAN, spelled, word

NO_NUMBER = ("hot", None, True, [], {})
# What is out of the range of a setting, in attention as at the head.
OUT_OF_RANGE: dict[str, tuple] = {
    "temperature": (0, 0.0, -1, NAN, INF, -INF, *NO_NUMBER),
    "delta": (-1, NAN, INF, *NO_NUMBER),
    "beta": (-0.5, NAN, INF, *NO_NUMBER),
    "gamma": (-3, 2.5, NAN, INF, *NO_NUMBER),
    "centered": (1, 0.0, None, "yes", []),
    "coverage": ("vectors", 1, None, {"vector": [0, 4]}, {"vector": "two"}, {"vector": [2]}, []),
}


def bad_map(rng: random.Random, role: str) -> tuple[Any, tuple[str, ...]]:
    """A value that is no map for ``role``, and what names it."""
    kind = rng.choice(("word", "type", "alpha", "setting", "unknown", "nameless", "tau"))
    if kind == "word":
        name = rng.choice((word(rng), "Entmax15", "entmax 1.5", "", " sparsemax", "softmax\n"))
        return name, (*spelled(name), role)
    if kind == "type":
        value = rng.choice((1, 1.5, True, b"entmax15", {"entmax15"}, torch.tensor(1.5), functional.entmax15))
        return value, (*spelled(value), role)
    if kind == "alpha":
        value = rng.choice((0.5, 0, -2, NAN, INF, -INF, "x", None, True, {"learned": 0.1}, {"start": 1.5}))
        return {"name": "entmax", "alpha": value}, ("alpha",)
    if kind == "setting":
        name = rng.choice([name for name in OUT_OF_RANGE if role != "head" or name not in ("coverage", "centered")])
        return {"name": "entmax15", name: rng.choice(OUT_OF_RANGE[name])}, (name,)
    if kind == "unknown":
        name = word(rng)
        return {"name": "sparsemax", name: 1.0}, (name,)
    if kind == "nameless":
        value = rng.choice(({"alpha": 1.5}, {"name": None}, {"name": 3}, {"name": ["entmax15"]}, {}))
        return value, (*spelled(value), role)
    return {"name": "alpha_relu", "tau": rng.choice((NAN, INF, -INF, "automatic", None, True))}, ("tau", "alpha_relu")


def bad_attention(rng: random.Random) -> tuple[Any, tuple[str, ...]]:
    """A value that is no ``attn`` for a decoder of two layers."""
    kind = rng.choice(("map", "map", "kind", "layers", "entry", "list", "unfit"))
    if kind == "map":
        return bad_map(rng, "attn")
    if kind == "kind":
        name = rng.choice((word(rng), "cross", "encoder", 0, None))
        return {name: "entmax15"}, spelled(name)
    if kind == "layers":
        layers = rng.choice((1, 3, 5))
        return {"decoder": ["entmax15"] * layers}, ("decoder",)
    if kind == "entry":
        value, named = bad_map(rng, "attn['decoder'][1]")
        return {"decoder": ["entmax15", value]} if value is not None else {}, (*named, "attn")
    if kind == "list":
        return rng.choice((["entmax15"], ("entmax15", "sparsemax"), [], {"decoder": []}, {"decoder": [None, None]})), (
            "attn",
            "decoder",
        )
    return rng.choice(
        (
            {"name": "alpha_relu"},
            {"name": "entmax15", "centered": True},
            {"name": "entmax15", "gamma": 2.0},
            {"name": "entmax15", "beta": 0.0, "delta": 0.0},
            {"name": "csparsemax", "fertility": -1.0},
            {"name": "csparsemax", "fertility": "guided"},
            {"name": "entmax", "alpha": [1.5, 1.5, 1.5]},
            {"name": "entmax15", "temperature": [1.0, -1.0]},
        )
    ), ("alpha_relu", "centered", "gamma", "delta", "fertility", "alpha", "temperature", "csparsemax")
