"""Random calls with bad values: each is refused by name, and leaves the model as it was."""

from __future__ import annotations

import copy
import json
import linecache
import math
import random
import shutil
import string
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hf_sparse
from hf_sparse import functional, losses
from hf_sparse.attention import set_impl
from hf_sparse.config import MapConfig, SparseConfig
from tests.tiny_models import tiny_model, tokens

REFUSALS = (ValueError, TypeError, NotImplementedError, FileNotFoundError, IndexError)
CALLS = 500
NAN, INF = math.nan, math.inf
VOCAB = 23


@dataclass
class World:
    """What calls are made with; models that no call may change."""

    dense: Any
    sparse: Any
    seq2seq: Any
    saved: Path
    folder: Path
    inputs: dict[str, Tensor]
    batches: list[dict[str, Tensor]]


@dataclass
class BadCall:
    """A call that must be refused.

    Attributes:
        text: how a failure shows it.
        make: makes it.
        named: the message has one of these: the argument, or the value.
    """

    text: str
    make: Callable[[], Any]
    named: tuple[str, ...]


Family = Callable[[random.Random, World], BadCall]
FAMILIES: dict[str, tuple[int, Family]] = {}


def family(weight: int) -> Callable[[Family], Family]:
    """Enter a generator of bad calls, with how often it is drawn."""

    def enter(function: Family) -> Family:
        FAMILIES[function.__name__] = (weight, function)
        return function

    return enter


def word(rng: random.Random) -> str:
    """A word that names nothing."""
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(4, 9))) + "zq"


def spelled(*values: Any) -> tuple[str, ...]:
    """How messages may show values."""
    return tuple(text for value in values for text in {str(value), repr(value)} if text)


def bad_call(function: Callable, good: dict[str, Any], name: str, value: Any, *also: str) -> BadCall:
    """``function`` with good arguments but for one."""
    arguments = {**good, name: value}
    text = f"{getattr(function, '__name__', function)}({name}={value!r})"
    return BadCall(text, lambda: function(**arguments), (name, *spelled(value), *also))


BELOW_ONE = (0, -1, -7, 1.5, NAN, "many", None, True, [2])
NOT_A_PROBABILITY = (-0.1, 1.5, NAN, INF, "half", [0.5], None)
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
            {"name": "alpha_relu", "tau": 0.3},
            {"name": "entmax15", "centered": True},
            {"name": "entmax15", "gamma": 2.0},
            {"name": "entmax15", "beta": 0.0, "delta": 0.0},
            {"name": "csparsemax", "fertility": -1.0},
            {"name": "csparsemax", "fertility": "guided"},
            {"name": "entmax", "alpha": [1.5, 1.5, 1.5]},
            {"name": "entmax15", "temperature": [1.0, -1.0]},
        )
    ), ("alpha_relu", "centered", "gamma", "delta", "fertility", "alpha", "temperature", "csparsemax")


# -- sparsify and the models it makes -------------------------------------------------------------------------------


@family(5)
def sparsify_attention(rng: random.Random, world: World) -> BadCall:
    value, named = bad_attention(rng)
    return bad_call(hf_sparse.sparsify, {"model": world.dense}, "attn", value, *named)


@family(4)
def sparsify_head(rng: random.Random, world: World) -> BadCall:
    value, named = bad_map(rng, "head")
    return bad_call(hf_sparse.sparsify, {"model": world.dense}, "head", value, *named)


@family(2)
def sparsify_others(rng: random.Random, world: World) -> BadCall:
    name, value = rng.choice((
        ("fused_loss", 1), ("fused_loss", "yes"), ("fused_loss", None), ("fertility", 2.0), ("fertility", "guided"),
        ("training_fertility", torch.nn.Linear(2, 2)), ("fertility", torch.nn.Linear(2, 2)),
        ("head", "csparsemax"), ("head", "sum_normalization"), ("head", {"name": "entmax15", "delta": 2.0}),
        ("head", {"name": "entmax15", "coverage": "vector"}), ("head", {"name": "entmax15", "centered": True}),
        ("head", {"name": "entmax", "alpha": [1.5, 1.2]}), ("head", {"name": "entmax", "alpha": "learned"}),
    ))  # fmt: skip
    return bad_call(
        hf_sparse.sparsify, {"model": world.dense, "head": "entmax15"}, name, value, "coverage", "centered"
    )


@family(2)
def sparsify_example(rng: random.Random, world: World) -> BadCall:
    value = rng.choice((
        "ids", 3, [tokens()], tokens(), {}, {word(rng): tokens()}, {"input_ids": "words"}, {"input_ids": None},
        {"input_ids": torch.zeros(2, 3)}, {"input_ids": torch.full((1, 3), VOCAB + 5)}, {1: tokens()},
        {"input_ids": tokens(), "attention_mask": "all"},
    ))  # fmt: skip
    return bad_call(hf_sparse.sparsify, {"model": world.dense, "attn": "entmax15"}, "example", value)


@family(2)
def not_a_sparse_model(rng: random.Random, world: World) -> BadCall:
    functions = (
        hf_sparse.unsparsify, hf_sparse.sparse_config, lambda model: hf_sparse.probabilities(model, torch.zeros(3)),
        lambda model: hf_sparse.save_pretrained(model, world.folder / "never"),
        lambda model: hf_sparse.calibrate(model, world.batches, progress=False),
    )  # fmt: skip
    model = rng.choice((None, "gpt2", 3, torch.nn.Linear(2, 2), world.dense, {}))
    shown = type(model).__name__
    return BadCall(f"a sparse model needed, {shown}", lambda: rng.choice(functions)(model), (shown,))


@family(1)
def not_a_model(rng: random.Random, world: World) -> BadCall:
    function = rng.choice((hf_sparse.sparsify, hf_sparse.is_sparse, hf_sparse.doctor))
    model = rng.choice((None, "gpt2", 3, torch.nn.Linear(2, 2), [world.dense], type(world.dense)))
    arguments = {"attn": "entmax15"} if function is not hf_sparse.is_sparse else {}
    return BadCall(f"{function.__name__}({model!r})", lambda: function(model, **arguments), (type(model).__name__,))


@family(1)
def sparse_already(rng: random.Random, world: World) -> BadCall:
    return BadCall("sparsify twice", lambda: hf_sparse.sparsify(world.sparse, attn="sparsemax"), ("sparse already",))


@family(3)
def forward_arguments(rng: random.Random, world: World) -> BadCall:
    name, value = rng.choice((
        ("label_smoothing", -0.1), ("label_smoothing", 1.5), ("label_smoothing", NAN), ("label_smoothing", "some"),
        ("num_items_in_batch", -3), ("num_items_in_batch", NAN),
        ("num_items_in_batch", "all"), ("fertility", 2.0), ("fertility", "two"), ("fertility", -1.0),
        ("log_probs", "yes"), ("log_probs", 1),
    ))  # fmt: skip
    return bad_call(world.sparse, {**world.inputs, "labels": world.inputs["input_ids"]}, name, value)


@family(2)
def implementations(rng: random.Random, world: World) -> BadCall:
    value = rng.choice((word(rng), "", None, 3, True, ["torch"], "Torch", "cuda"))
    return BadCall(f"set_impl({value!r})", lambda: set_impl(world.sparse, value), ("impl", *spelled(value)))


@family(1)
def dense_again(rng: random.Random, world: World) -> BadCall:
    model = rng.choice((world.sparse, world.sparse.model))
    value = rng.choice(("eager", "sdpa", "flash_attention_2", word(rng)))
    return BadCall(f"set_attn_implementation({value!r})", lambda: model.set_attn_implementation(value), spelled(value))


@family(1)
def bad_probabilities(rng: random.Random, world: World) -> BadCall:
    value = rng.choice((None, [0.1, 0.2], "logits", torch.zeros(2, 3, dtype=torch.long), torch.tensor(1.0), 3))
    return bad_call(hf_sparse.probabilities, {"model": world.sparse}, "logits", value, "scores", "z ", "float")


# -- settings -------------------------------------------------------------------------------------------------------


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


# -- maps and losses ------------------------------------------------------------------------------------------------

BAD_BOUNDS = (-torch.ones(2, 3), torch.full((2, 3), 0.1), torch.ones(4), None, 1.0, torch.full((2, 3), NAN))
SIMPLE_MAPS = ("softmax", "entmax15", "sparsemax", "entmax", "sparsegen_lin", "sparsehourglass", "spherical_softmax")


@family(4)
def scores_of_maps(rng: random.Random, world: World) -> BadCall:
    function = getattr(functional, rng.choice(SIMPLE_MAPS))
    value = rng.choice((
        None, 1.0, "z", [0.1, 0.2], torch.tensor([1, 2, 3]), torch.tensor(1.0), torch.zeros(3, dtype=torch.bool),
        torch.zeros(2, dtype=torch.complex64), torch.zeros(2, 0),
    ))  # fmt: skip
    text = f"{function.__name__}({value!r})"
    return BadCall(text, lambda: function(value), ("scores", "z ", "logits", "shape", *spelled(value)))


@family(3)
def dimensions_of_maps(rng: random.Random, world: World) -> BadCall:
    function = getattr(functional, rng.choice(SIMPLE_MAPS))
    return bad_call(function, {"z": torch.zeros(2, 3)}, "dim", rng.choice((2, -3, 7, 1.5, None, "last", True, [0])))


@family(5)
def settings_of_maps(rng: random.Random, world: World) -> BadCall:
    name, setting, values = rng.choice((
        ("entmax", "alpha", (0.5, NAN, INF, -1, None, "x", torch.zeros(5), torch.tensor([0.5, 0.5]))),
        ("alpha_relu", "alpha", (0.5, 1.0, NAN, INF, None, "x")),
        ("alpha_relu", "tau", (NAN, INF, None, "auto")),
        ("sparsegen_lin", "lam", (1.0, 2, NAN, -INF, None, "x")),
        ("sparsegen_exp", "lam", (1.0, 2, NAN, None, "x")),
        ("sparsehourglass", "q", (-1, NAN, None, "x")),
        ("sparsecone", "q", (-1, NAN, None, "x")),
        ("entmax", "impl", ("gpu", None, 1)),
        ("entmax15", "impl", ("gpu", None, 1)),
        ("sparsemax", "impl", ("gpu", None, 1)),
        ("csparsemax", "u", BAD_BOUNDS),
        ("csoftmax", "u", BAD_BOUNDS),
        ("entmax_threshold", "alpha", (0.5, NAN, None, "x")),
        ("entmax_support", "alpha", (0.5, 1.0, NAN, None, "x")),
        ("threshold", "name", ("entmix", None, 1)),
        ("support", "name", ("entmix", None, 1)),
    ))  # fmt: skip
    good = {"z": torch.zeros(2, 3), **({"alpha": 1.5, "tau": 0.1} if name == "alpha_relu" else {})}
    return bad_call(getattr(functional, name), good, setting, rng.choice(values))


LOSSES = ("entmax15_loss", "sparsemax_loss", "softmax_loss", "entmax_loss")


@family(6)
def options_of_losses(rng: random.Random, world: World) -> BadCall:
    logits, target = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3])
    name, values = rng.choice((
        ("reduction", ("avg", None, 1, ["mean"])),
        ("label_smoothing", (-0.1, 1.5, NAN, "x", None)),
        ("num_items", (-1, NAN, "x", torch.tensor(-2), [1])),
        ("ignore_index", ("x", None, 1.5)),
        ("weight", (torch.ones(3), [1.0] * 5, "x")),
        ("impl", ("gpu", None, 2)),
        ("target", (torch.tensor([0, 1, 2, 9]), torch.tensor([0, -1, 2, 3]), torch.tensor([0.0, 1, 2, 3]), None, "x")),
        ("target", (torch.zeros(3).long(), [0, 1, 2, 3], torch.ones(4, 6))),
        ("logits", (None, [[0.1] * 5] * 4, torch.zeros(4, 5).long(), torch.zeros(5), torch.zeros(4, 0), "x")),
        ("bogus", (1.0,)),
    ))  # fmt: skip
    function = getattr(losses, rng.choice(LOSSES))
    return bad_call(
        function, {"logits": logits, "target": target}, name, rng.choice(values), "scores", "label", "class"
    )


@family(4)
def linear_losses(rng: random.Random, world: World) -> BadCall:
    generator = torch.Generator().manual_seed(0)
    good = {
        "hidden": torch.randn(4, 3, generator=generator),
        "weight": torch.randn(5, 3, generator=generator),
        "target": torch.tensor([0, 1, 2, 3]),
    }
    name, values = rng.choice((
        ("reduction", ("avg", None, 1)),
        ("label_smoothing", (-0.1, 1.5, NAN, "x")),
        ("num_items", (-1, NAN, "x")),
        ("ignore_index", ("x", None, 1.5)),
        ("softcap", (0.0, -1.0, NAN, "x")),
        ("scale", (NAN, INF, "x", None)),
        ("chunk_size", (0, -1, 1.5, "x")),
        ("alpha", (0.5, NAN, INF, "x", None)),
        ("bias", (torch.zeros(3), "x", [0.0] * 5)),
        ("impl", ("gpu", None)),
        ("hidden", (None, torch.zeros(4, 2), torch.zeros(4, 3).long(), "x")),
        ("weight", (None, torch.zeros(5, 2), torch.zeros(5), "x")),
        ("target", (torch.tensor([0, 1, 2, 9]), torch.zeros(3).long(), torch.zeros(4), None, [0, 1, 2, 3])),
    ))  # fmt: skip
    return bad_call(losses.linear_entmax_loss, good, name, rng.choice(values), "label", "class")


@family(2)
def losses_by_name(rng: random.Random, world: World) -> BadCall:
    logits, target = torch.zeros(4, 5), torch.tensor([0, 1, 2, 3])
    name, settings = rng.choice((
        (word(rng), {}), (None, {}), (3, {}), ("csparsemax", {}), ("sum_normalization", {}),
        ("entmax15", {"alpha": 1.5}), ("entmax", {"alpha": 0.3}), ("entmax", {"tau": 0.3}),
        ("alpha_relu", {"tau": NAN}), ("sparsegen_lin", {"lam": 2.0}),
    ))  # fmt: skip
    named = (*spelled(name), *settings)
    text = f"fenchel_young_loss({name!r}, {settings})"
    return BadCall(text, lambda: losses.fenchel_young_loss(logits, target, name, **settings), named)


@family(1)
def thresholds(rng: random.Random, world: World) -> BadCall:
    good = {"alpha": 1.5, "vocab_size": 100, "std": 1.0}
    name, values = rng.choice((
        ("alpha", (0.5, 1.0, NAN, "x", None)), ("vocab_size", (0, -1, 1.5, "x", None)), ("std", (-1, NAN, INF, "x")),
        ("mean", (NAN, INF, "x")),
    ))  # fmt: skip
    return bad_call(functional.estimate_tau, good, name, rng.choice(values))


# -- decoding -------------------------------------------------------------------------------------------------------


@family(5)
def searches(rng: random.Random, world: World) -> BadCall:
    name, values = rng.choice((
        *((name, BELOW_ONE) for name in ("num_hypotheses", "width", "max_open", "max_expanded", "max_new_tokens")),
        ("min_probability", NOT_A_PROBABILITY),
        ("max_seconds", (-1, NAN, "x", [1])),
        ("inputs", (None, tokens(), {}, [tokens()], {"input_ids": [[1, 2]]}, "x")),
        ("do_sample", (True,)),
        ("num_beams", (2,)),
    ))  # fmt: skip
    good = {"model": world.sparse, "inputs": world.inputs, "max_new_tokens": 3}
    return bad_call(hf_sparse.exact_search, good, name, rng.choice(values), "sampl", "beam")


@family(3)
def supports(rng: random.Random, world: World) -> BadCall:
    name, values = rng.choice((
        ("max_hypotheses", BELOW_ONE), ("max_new_tokens", BELOW_ONE), ("min_probability", NOT_A_PROBABILITY),
        ("inputs", (None, tokens(), {}, {"input_ids": tokens(2)}, {"input_ids": [[1, 2]]})),
        ("model", (world.dense, None)),
    ))  # fmt: skip
    good = {"model": world.sparse, "inputs": {"input_ids": tokens(1)}, "max_new_tokens": 2}
    return bad_call(
        hf_sparse.enumerate_support, good, name, rng.choice(values), "sparse", "sentence", "one", "NoneType"
    )


@family(3)
def scores_of_strings(rng: random.Random, world: World) -> BadCall:
    if rng.random() < 0.5:
        value = rng.choice((None, [[1, 2]], tokens(3), torch.zeros(2, 9), torch.full((2, 9), 99), tokens(2)[0], "x"))
        good = {"model": world.sparse, "inputs": world.inputs}
        return bad_call(hf_sparse.score_sequences, good, "sequences", value)
    value = rng.choice((None, "x", [1.5], [99], [-1], [], 3, torch.zeros(2, 2)))
    good = {"model": world.sparse, "inputs": {"input_ids": tokens(1)}}
    return bad_call(hf_sparse.step_supports, good, "tokens", value)


@family(4)
def processors(rng: random.Random, world: World) -> BadCall:
    make, name, values = rng.choice((
        (hf_sparse.EntmaxLogitsProcessor, "alpha", (0.5, NAN, INF, "x", None, True)),
        (hf_sparse.AlphaReluLogitsProcessor, "tau", (NAN, INF, "x", None, "auto")),
        (hf_sparse.SparseLogitsProcessor, "head", ("entmix", None, 3, {"name": "entmax", "alpha": 0})),
        (hf_sparse.SparseLogitsProcessor, "head", ({"name": "alpha_relu"}, {"name": "entmax15", "tau": 1.0})),
        (hf_sparse.TopHLogitsProcessor, "alpha", (0, -1, NAN, 1.5, "x", None)),
        (hf_sparse.CoveragePenalty, "beta", (-1, NAN, INF, "x", None)),
        (hf_sparse.CoveragePenalty, "alpha", (-1, NAN, INF, "x", None)),
        (hf_sparse.CoveragePenalty, "epsilon", (0, -1, NAN, "x", None)),
    ))  # fmt: skip
    return bad_call(make, {}, name, rng.choice(values), "tau")


@family(2)
def other_decoding(rng: random.Random, world: World) -> BadCall:
    good = {"model": world.sparse, "inputs": world.inputs}
    tree = {"sequences": [[1, 2]]}
    function, given, name, values, also = rng.choice((
        (hf_sparse.compare_with_empty, good, "num_beams", BELOW_ONE, "beam"),
        (hf_sparse.compare_with_empty, good, "inputs", (None, {}, "x", [1]), "input"),
        (hf_sparse.beam_certificate, {"model": world.sparse, "num_beams": 2}, "output", (None, tokens()), "output"),
        (hf_sparse.hypothesis_tree, tree, "probabilities", ([0.5, 0.5], [1.5], [NAN], None, ["x"]), "probabilit"),
        (hf_sparse.Ensemble, {}, "members", ([], None, [None], ["x"]), "model"),
    ))  # fmt: skip
    return bad_call(function, given, name, rng.choice(values), also)


@family(1)
def guided_generation(rng: random.Random, world: World) -> BadCall:
    scale = rng.choice((1.5, 2.0, 7))
    call = BadCall(
        "generate(guidance_scale)",
        lambda: world.sparse.generate(**world.inputs, max_new_tokens=2, guidance_scale=scale),
        ("guidance_scale",),
    )
    other = BadCall("continuous batching", lambda: world.sparse.init_continuous_batching(), ("continuous batching",))
    return rng.choice((call, other))


# -- conversion, training -------------------------------------------------------------------------------------------


@family(4)
def measuring(rng: random.Random, world: World) -> BadCall:
    sparse = {"model": world.sparse, "dataloader": world.batches, "progress": False, "max_batches": 1}
    dense = {**sparse, "model": world.dense, "attn": "entmax15"}
    loaders = (None, 3, "x", [], [3], [{}], [{"input_ids": tokens()}], iter(()), [{"input_ids": "x", "labels": "y"}])
    function, good, name, values = rng.choice((
        (hf_sparse.calibrate, sparse, "max_batches", BELOW_ONE[:6]),
        (hf_sparse.calibrate, sparse, "eps", (0, -1, NAN, "x", None)),
        (hf_sparse.calibrate, sparse, "per_head", ("yes", 1, None)),
        (hf_sparse.calibrate, sparse, "dataloader", loaders),
        (hf_sparse.compare, dense, "budget", (-1, NAN, "x", None)),
        (hf_sparse.compare, dense, "max_batches", BELOW_ONE[:6]),
        (hf_sparse.compare, dense, "eps", (0, -1, NAN, "x", None)),
        (hf_sparse.compare, dense, "dataloader", loaders),
        (hf_sparse.compare, dense, "attn", ("entmix", 3, {"cross": "entmax15"})),
        (hf_sparse.compare, dense, "head", ("entmix", 3, {"name": "entmax", "alpha": 0.1})),
        (hf_sparse.estimate_tau_from_data, {**sparse, "model": world.dense}, "alpha", (0.5, 1.0, NAN, "x", None)),
        (hf_sparse.estimate_tau_from_data, {**sparse, "model": world.dense}, "temperature", (0, -1, NAN, "x", None)),
        (hf_sparse.estimate_tau_from_data, {**sparse, "model": world.dense}, "dataloader", loaders[:6]),
    ))  # fmt: skip
    return bad_call(function, good, name, rng.choice(values), "labels", "batch", "loader", "cross")


@family(3)
def training_arguments(rng: random.Random, world: World) -> BadCall:
    name, values = rng.choice((
        ("sparse_label_smoothing", (-0.1, 1.5, NAN, "x", None)),
        ("distillation_weight", (-0.1, 1.5, NAN, "x", None)),
        ("log_sparsity", ("yes", 1, None)),
    ))  # fmt: skip
    good = {"output_dir": str(world.folder / "out"), "report_to": "none"}
    return bad_call(hf_sparse.SparseTrainingArguments, good, name, rng.choice(values))


@family(3)
def annealing(rng: random.Random, world: World) -> BadCall:
    name, values = rng.choice((
        ("over", (0, -1, 0.0, 1.5, NAN, INF, "half", None, True)),
        ("schedule", ("linea", None, 1, ["linear"])),
        ("stages", (0, -1, 2.5, "x", None, True)),
        ("attn", ({}, "entmax15", 1.0, {"alpha": "x"}, {"alpha": NAN}, {"alpha": None}, {"alpha": INF}, ["alpha"])),
        ("head", ({}, "entmax15", 1.0, {"tau": "x"}, {"tau": NAN}, {"tau": True})),
    ))  # fmt: skip
    return bad_call(hf_sparse.AnnealingCallback, {}, name, rng.choice(values), "alpha", "tau")


@family(1)
def fertilities(rng: random.Random, world: World) -> BadCall:
    value = rng.choice((None, [1.0], "x", torch.zeros(2, 2), torch.tensor([1, -1]), torch.tensor([NAN, 1.0])))
    return BadCall(f"GuidedFertility({value!r})", lambda: hf_sparse.GuidedFertility(value), ("table",))


# -- files ----------------------------------------------------------------------------------------------------------


@family(5)
def tampered_files(rng: random.Random, world: World) -> BadCall:
    folder = world.folder / f"tampered-{rng.randrange(10**9)}"
    shutil.copytree(world.saved, folder)
    config = json.loads((folder / "config.json").read_text())
    kind = rng.choice(("block", "block", "block", "block", "no block", "class", "layers", "json", "gone"))
    named: tuple[str, ...] = ()
    if kind == "block":
        config["hf_sparse"], named = tampered_block(rng, config["hf_sparse"])
        named = (*named, "sparse checkpoint") if config["hf_sparse"] is None else named
    elif kind == "no block":
        del config["hf_sparse"]
        named = ("not a sparse checkpoint", "hf_sparse")
    elif kind == "class":
        config["architectures"] = rng.choice(([word(rng)], [], None, ["LlamaConfig"], [3], "Llama"))
        named = ("class", *spelled(config["architectures"]))
    elif kind == "layers":
        config["hf_sparse"]["attn"] = {"decoder": [{"name": "entmax15"}] * rng.choice((1, 3, 7))}
        named = ("decoder",)
    text = json.dumps(config)
    if kind == "json":
        text, named = text[: len(text) // 2], ("config.json",)
    (folder / "config.json").write_text(text)
    if kind == "gone":
        (folder / "config.json").unlink()
        named = (str(folder),)
    shown = {key: config.get(key) for key in ("hf_sparse", "architectures")}
    return BadCall(f"from_pretrained of {kind}: {shown}", lambda: hf_sparse.from_pretrained(folder), named)


@family(2)
def loading(rng: random.Random, world: World) -> BadCall:
    name, value = rng.choice((
        ("path", str(world.folder / "nowhere")), ("path", None), ("path", 3), ("path", ""),
        ("auto_class", "AutoModelForCausalLM"), ("auto_class", 3), ("auto_class", torch.nn.Linear),
        ("attn_implementation", "eager"), ("attn_implementation", "sdpa"),
    ))  # fmt: skip
    return bad_call(hf_sparse.from_pretrained, {"path": world.saved}, name, value)


@family(2)
def saving(rng: random.Random, world: World) -> BadCall:
    name, value = rng.choice((
        ("path", None), ("path", 3), ("figures", 3), ("figures", [1]),
        ("figures", {"support": "x"}), ("figures", "x"), ("figures", {3: 1.0}),
    ))  # fmt: skip
    good = {"model": world.sparse, "path": world.folder / f"saved-{rng.randrange(10**9)}"}
    return bad_call(hf_sparse.save_pretrained, good, name, value)


# -- the test -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("bad-calls")
    sparse = hf_sparse.sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    hf_sparse.save_pretrained(sparse, folder / "saved")
    inputs = {"input_ids": tokens()}
    batches = [{"input_ids": tokens(), "labels": tokens()}]
    dense = tiny_model("llama", seed=3)
    return World(dense, sparse, None, folder / "saved", folder, inputs, batches)


def drawn() -> Iterator[tuple[int, str, int]]:
    """(number, family, seed) of every call."""
    rng = random.Random(2026)
    names, weights = zip(*((name, weight) for name, (weight, _) in FAMILIES.items()), strict=True)
    for number, name in enumerate([*names, *rng.choices(names, weights, k=CALLS - len(names))]):
        yield number, name, rng.randrange(2**31)


def problem_with(call: BadCall) -> str | None:
    """Why the answer to a bad call is not a refusal that helps, or None."""
    try:
        returned = call.make()
    except REFUSALS as error:
        return None if refused_by_name(error, call.named) else f"cryptic: {_shown(error)}"
    except OSError as error:  # documented by Transformers for paths
        own = "transformers" in traceback.extract_tb(error.__traceback__)[-1].filename
        return None if own and any(name in str(error) for name in call.named) else f"cryptic: {_shown(error)}"
    except Exception as error:  # noqa: BLE001
        return f"cryptic: {_shown(error)}"
    return f"accepted, returned {str(returned)[:60]!r}"


def refused_by_name(error: Exception, named: tuple[str, ...]) -> bool:
    """Whether it was raised on purpose, here or by Transformers, with a message that names what is wrong."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    raised = linecache.getline(last.filename, last.lineno or 0).strip().startswith("raise ")
    ours = "hf_sparse" in last.filename or "transformers" in last.filename
    return raised and ours and any(name in str(error) for name in named)


def _shown(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {' '.join(str(error).split())[:200]}"


def state_of(world: World) -> list[Tensor]:
    with torch.no_grad():
        return [model(**world.inputs).logits for model in (world.dense, world.sparse)]


def test_bad_calls_are_refused_by_name_and_change_no_model(world):
    before = state_of(world)
    settings = hf_sparse.sparse_config(world.sparse)
    problems = []
    for number, name, seed in drawn():
        call = FAMILIES[name][1](random.Random(seed), world)
        problem = problem_with(call)
        if hf_sparse.is_sparse(world.dense):
            hf_sparse.unsparsify(world.dense)
            problem = problem or "the model became sparse"
        after = state_of(world)
        if not all(map(torch.equal, before, after)) or hf_sparse.sparse_config(world.sparse) != settings:
            problem = f"{problem}; a model changed"
        if problem:
            problems.append(f"{number} {name}: {' '.join(call.text[-200:].split())}: {problem}")
            before, settings = after, hf_sparse.sparse_config(world.sparse)
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems)
