"""Bad settings, in calls and in saved blocks."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from hf_sparse.config import MapConfig, SparseConfig
from tests.bad_calls.calls import BadCall, World, family, spelled, word
from tests.bad_calls.maps import bad_attention, bad_map


@family(4)
def map_configs(rng: random.Random, world: World) -> BadCall:
    role = rng.choice(("attn", "head"))
    value, named = bad_map(rng, role)
    if isinstance(value, dict) and (value.get("name") == "alpha_relu" or "coverage" in value):
        value, named = "alpha-relu", ("alpha-relu",)
    return BadCall(f"MapConfig.parse({value!r}, {role!r})", lambda: MapConfig.parse(value, role), named)


@family(3)
def saved_blocks(rng: random.Random, world: World) -> BadCall:
    block, named = tampered_block(rng, {"version": 1, "attn": {"name": "entmax15"}, "head": None, "fused_loss": False})
    return BadCall(f"SparseConfig.from_dict({block!r})", lambda: SparseConfig.from_dict(block), named)


def tampered_block(rng: random.Random, block: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """The block of a saved model, with something wrong in it."""
    block = copy.deepcopy(block)
    kind = rng.choice(("version", "no version", "field", "attn", "head", "fused", "type", "open", "coverage", "empty"))
    if kind == "version":
        block["version"] = rng.choice((0, 2, "1", None, [1], 1.5))
        return block, (*spelled(block["version"]), "version")
    if kind == "no version":
        del block["version"]
        return block, ("configuration", "version")
    if kind == "field":
        name = word(rng)
        return {**block, name: 1}, (name,)
    if kind == "attn":
        block["attn"], named = bad_attention(rng)
        attn = block["attn"] if isinstance(block["attn"], dict) else {}
        if not _plain(block["attn"]) or list(attn) in (["cross"], ["encoder"]):
            block["attn"], named = {"name": "entmix"}, ("entmix",)
        if isinstance(attn.get("decoder"), list):
            block["attn"], named = {"decoder": ["entmax15", "entmix"]}, ("entmix",)
        if isinstance(block["attn"], dict) and block["attn"].get("alpha") == [1.5, 1.5, 1.5]:
            block["attn"], named = 1.5, ("attn",)
        if block["attn"] == {"name": "csparsemax", "fertility": "guided"}:
            block["attn"], named = None, ("attn",)
        return block, named
    if kind == "head":
        block["head"], named = bad_map(rng, "head")
        if not _plain(block["head"]):
            block["head"], named = 7, ("head",)
        return block, named
    if kind == "fused":
        block["fused_loss"] = rng.choice((1, "false", None, []))
        return block, ("fused_loss",)
    if kind == "open":
        return {**block, "head": {"name": "alpha_relu"}}, ("tau",)
    if kind == "coverage":
        return {**block, "attn": {"cross": {"name": "entmax15", "coverage": "vector"}}}, ("coverage",)
    if kind == "empty":
        return {**block, "attn": None, "head": None}, ("attn", "head")
    return rng.choice((None, [], "sparse", 1, [block], {})), ("configuration",)


def _plain(value: Any) -> bool:
    try:
        return json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False
