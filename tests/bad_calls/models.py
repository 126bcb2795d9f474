"""Bad calls of ``sparsify`` and of the models it makes."""

from __future__ import annotations

import random

import torch

import hf_sparse
from hf_sparse.attention import set_impl
from tests.bad_calls.calls import NAN, VOCAB, BadCall, World, bad_call, family, spelled, word
from tests.bad_calls.maps import bad_attention, bad_map
from tests.tiny_models import tokens


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
