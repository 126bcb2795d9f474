"""Bad calls of conversion and training."""

from __future__ import annotations

import random

import torch

import hf_sparse
from tests.bad_calls.calls import BELOW_ONE, INF, NAN, BadCall, World, bad_call, family
from tests.tiny_models import tokens


@family(4)
def measuring(rng: random.Random, world: World) -> BadCall:
    sparse = {"model": world.sparse, "dataloader": world.batches, "progress": False, "max_batches": 1}
    dense = {**sparse, "model": world.dense, "attn": "entmax15"}
    loaders = (None, 3, "x", [], [3], [{}], iter(()), [{"input_ids": "x", "labels": "y"}])
    unlabelled = [{"input_ids": tokens()}]
    function, good, name, values = rng.choice((
        (hf_sparse.calibrate, sparse, "max_batches", BELOW_ONE[:6]),
        (hf_sparse.calibrate, sparse, "uniform_share", (0, -1, NAN, "x", None)),
        (hf_sparse.calibrate, sparse, "per_head", ("yes", 1, None)),
        (hf_sparse.calibrate, sparse, "dataloader", loaders),
        (hf_sparse.calibrate, sparse, "fit_alpha", ("yes", 1, None)),
        (hf_sparse.calibrate, sparse, "edges", (0, 1.5, NAN, "x")),
        (hf_sparse.calibrate, sparse, "coverage", (0, 1, NAN, "x")),
        (hf_sparse.calibrate, sparse, "classes", (0.5, NAN, INF, "x")),
        (hf_sparse.calibrate, sparse, "max_seconds", (0, -1, NAN, "x")),
        (hf_sparse.calibrate, sparse, "measure", ("kl", 3, None)),
        (hf_sparse.compare, dense, "measure", ("kl", 3, None)),
        (hf_sparse.compare, dense, "budget", (-1, NAN, "x", None)),
        (hf_sparse.compare, dense, "max_batches", BELOW_ONE[:6]),
        (hf_sparse.compare, dense, "uniform_share", (0, -1, NAN, "x", None)),
        (hf_sparse.compare, dense, "dataloader", loaders),
        (hf_sparse.compare, dense, "attn", ("entmix", 3, {"cross": "entmax15"})),
        (hf_sparse.compare, dense, "head", ("entmix", 3, {"name": "entmax", "alpha": 0.1})),
        (hf_sparse.estimate_tau_from_data, {**sparse, "model": world.dense}, "alpha", (0.5, 1.0, NAN, "x", None)),
        (hf_sparse.estimate_tau_from_data, {**sparse, "model": world.dense}, "temperature", (0, -1, NAN, "x", None)),
        (hf_sparse.estimate_tau_from_data, {**sparse, "model": world.dense}, "dataloader", (*loaders[:6], unlabelled)),
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
