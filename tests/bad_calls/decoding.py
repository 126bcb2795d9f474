"""Bad calls of decoding."""

from __future__ import annotations

import random

import torch

import hf_sparse
from tests.bad_calls.calls import BELOW_ONE, INF, NAN, NOT_A_PROBABILITY, BadCall, World, bad_call, family
from tests.tiny_models import tokens


@family(5)
def searches(rng: random.Random, world: World) -> BadCall:
    name, values = rng.choice((
        *((name, BELOW_ONE) for name in ("num_hypotheses", "width", "max_open", "max_expanded", "max_new_tokens")),
        ("min_probability", NOT_A_PROBABILITY),
        ("max_seconds", (-1, NAN, "x", [1])),
        ("inputs", (None, tokens(), {}, [tokens()], {"input_ids": [[1, 2]]}, "x")),
        ("do_sample", (True,)),
        ("stop_strings", (["a"], "a")),
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
def conditions(rng: random.Random, world: World) -> BadCall:
    language = hf_sparse.Lexicon([[3, 4]])
    good = {"model": world.sparse, "inputs": world.inputs, "given": language, "max_new_tokens": 3}
    lexicon, nothing = {"entries": ["a"]}, {"words": ["a"], "tokenizer": None}
    function, given, name, values, also = rng.choice((
        *((hf_sparse.condition, good, name, BELOW_ONE, name)
          for name in ("width", "max_open", "max_expanded", "max_new_tokens")),
        (hf_sparse.condition, good, "inputs", (None, tokens(), {}, {"input_ids": [[1, 2]]}, "x"), "inputs"),
        (hf_sparse.condition, good, "given", (None, "x", [], [language], ["x"], hf_sparse.Lexicon), "given"),
        (hf_sparse.condition, good, "constrained", (None, "x", 1), "constrained"),
        (hf_sparse.condition, good, "max_seconds", (-1, NAN, "x", [1]), "max_seconds"),
        (hf_sparse.Lexicon, {}, "entries", (None, "x", [], [3], [["a"]], [[1.5]], 3), "entries"),
        (hf_sparse.Lexicon, lexicon, "tokenizer", (None, "x", 3), "tokenizer"),
        (hf_sparse.Lexicon, lexicon, "tokenizations", ("some", None, 3), "tokenizations"),
        (hf_sparse.RequiredWords, nothing, "words", (None, "x", [], [""], [3]), "words"),
        (hf_sparse.RequiredWords, nothing, "tokenizer", (None, "x", 3), "tokenizer"),
    ))  # fmt: skip
    return bad_call(function, given, name, rng.choice(values), also)


@family(3)
def scores_of_strings(rng: random.Random, world: World) -> BadCall:
    if rng.random() < 0.5:
        value = rng.choice((None, [[1, 2]], tokens(3), torch.zeros(2, 9), torch.full((2, 9), 99), tokens(2)[0], "x"))
        good = {"model": world.sparse, "inputs": world.inputs}
        return bad_call(hf_sparse.score_sequences, good, "sequences", value)
    value = rng.choice((None, "x", [1.5], [99], [-1], [], 3, torch.zeros(2, 2)))
    good = {"model": world.sparse, "inputs": {"input_ids": tokens(1)}}
    return bad_call(hf_sparse.step_supports, good, "tokens", value)


@family(1)
def texts_of_users(rng: random.Random, world: World) -> BadCall:
    function, name = rng.choice(((hf_sparse.suggest, "prefix"), (hf_sparse.html_report, "text")))
    good = {"model": world.sparse, "tokenizer": lambda text: None, name: "a"}
    if rng.random() < 0.5:
        return bad_call(function, good, "tokenizer", rng.choice((None, "x", 3)))
    return bad_call(function, good, name, rng.choice((None, ["a"], 3)))


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


@family(2)
def certificates(rng: random.Random, world: World) -> BadCall:
    name, values = rng.choice((
        ("outputs", ([], [99], [-1], [0.5], "x", 3, [True])),
        ("tolerance", (-1, NAN, "x", None)),
        ("model", (world.dense, None)),
        ("inputs", (None, {}, "x", {"input_ids": [[1, 2]]}, {"input_ids": tokens(), "pixel_values": tokens()})),
        ("sequences", (None, tokens(3), tokens())),
    ))  # fmt: skip
    sequences = torch.cat([world.inputs["input_ids"], tokens(2, 2)], dim=1)
    good = {"model": world.sparse, "inputs": world.inputs, "sequences": sequences}
    return bad_call(hf_sparse.certify, good, name, rng.choice(values), "sparse", "Transformers model", "NoneType")


@family(1)
def guided_generation(rng: random.Random, world: World) -> BadCall:
    scale = rng.choice((1.5, 2.0, 7))
    return BadCall(
        "generate(guidance_scale)",
        lambda: world.sparse.generate(**world.inputs, max_new_tokens=2, guidance_scale=scale),
        ("guidance_scale",),
    )
