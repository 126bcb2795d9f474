"""Bad calls of maps, losses and metrics."""

from __future__ import annotations

import random

import torch

from hf_sparse import functional, losses, metrics
from tests.bad_calls.calls import INF, NAN, BadCall, World, bad_call, family, spelled, word

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


@family(2)
def metrics_of_distributions(rng: random.Random, world: World) -> BadCall:
    good = {"p": torch.tensor([[0.5, 0.5, 0.0]]), "target": torch.tensor([2])}
    name, values = rng.choice((
        ("p", (None, "x", [[0.5, 0.5]], 1.0, torch.tensor([[1, 0, 0]]))),
        ("target", (None, "x", [2], 2, torch.tensor([3]), torch.tensor([2, 2]), torch.tensor([True]))),
        ("eps", (0, -1, NAN, "x", None, [0.1])),
    ))  # fmt: skip
    if name == "eps":
        return bad_call(metrics.eps_perplexity, good, name, rng.choice(values))
    function = rng.choice((metrics.sparsemax_score, metrics.jensen_shannon))
    return bad_call(function, good, name, rng.choice(values), "probabilities", "target")


@family(1)
def thresholds(rng: random.Random, world: World) -> BadCall:
    good = {"alpha": 1.5, "vocab_size": 100, "std": 1.0}
    name, values = rng.choice((
        ("alpha", (0.5, 1.0, NAN, "x", None)), ("vocab_size", (0, -1, 1.5, "x", None)), ("std", (-1, NAN, INF, "x")),
        ("mean", (NAN, INF, "x")),
    ))  # fmt: skip
    return bad_call(functional.estimate_tau, good, name, rng.choice(values))
