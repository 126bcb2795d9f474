"""Losses of logits against cross-entropy and the entmax package; forward and backward."""

from __future__ import annotations

from functools import partial

import entmax as package
import torch
import torch.nn.functional as F

from hf_sparse.functional import entmax_threshold
from hf_sparse.losses import alpha_relu_loss, entmax15_loss, entmax_loss, sparsemax_loss

from ._case import Case
from ._floor import NAME as FLOOR
from ._floor import loss_floor
from ._impls import impls
from ._inputs import logits, targets
from ._parts import loss_parts
from ._step import loss_step

TARGETS = {
    "trained": {"entmax15": 0.7, "sparsemax": 0.7, "entmax 1.3": 0.8, "alpha-ReLU": 1.0},
    "1.0": {"entmax15": 0.9, "alpha-ReLU": 1.0},
    "0.3": {"entmax15": 1.5, "sparsemax": 1.0, "alpha-ReLU": 1.0},
}
BEST = {
    "trained": {"entmax15": 0.25, "sparsemax": 0.25, "entmax 1.3": 0.3, "alpha-ReLU": 0.35},
    "1.0": {"entmax15": 0.3, "alpha-ReLU": 0.35},
    "0.3": {"entmax15": 0.4, "sparsemax": 0.25, "alpha-ReLU": 0.35},
}


def sparse_losses(kind: str, num_rows: int = 256, num_classes: int = 50_000) -> Case:
    z, y = logits(kind, num_rows, num_classes), targets(num_rows, num_classes)
    tau = float(entmax_threshold(z[:16]).mean())
    own = {
        "entmax15": entmax15_loss,
        "sparsemax": sparsemax_loss,
        "alpha-ReLU": partial(alpha_relu_loss, alpha=1.5, tau=tau),
    }
    if kind == "trained":  # at the start of training alpha 1.3 keeps thousands of classes: see flat_loss
        own["entmax 1.3"] = partial(entmax_loss, alpha=1.3)
    ours, targets_of = impls(own, TARGETS[kind], BEST[kind])
    parts = {**loss_parts("entmax15", z, y, 1.5), **loss_parts("sparsemax", z, y, 2.0)}
    parts |= loss_parts("alpha-ReLU", z, y, 1.5, tau)
    if "entmax 1.3" in own:
        parts |= loss_parts("entmax 1.3", z, y, 1.3)
    losses = {
        "cross_entropy": F.cross_entropy,
        **ours,
        FLOOR: loss_floor,
        "entmax package: entmax15, k=100": lambda z, y: package.entmax15_loss(z, y, k=100).mean(),
        "entmax package: sparsemax, k=100": lambda z, y: package.sparsemax_loss(z, y, k=100).mean(),
    }
    return Case(
        title=f"loss, {num_rows} x {num_classes}, {_regime(kind)}",
        baseline="cross_entropy",
        candidates={name: loss_step(loss, z, y) for name, loss in losses.items()},
        targets=targets_of,
        parts=parts,
    )


def exact_peer(num_rows: int = 256, num_classes: int = 50_000) -> Case:
    """The entmax package without its shortcut (k=None sorts the whole row), and its bisection."""
    z, y = logits("trained", num_rows, num_classes), targets(num_rows, num_classes)
    losses = {
        "cross_entropy": F.cross_entropy,
        "entmax package: entmax15": lambda z, y: package.entmax15_loss(z, y).mean(),
        "entmax package: alpha 1.3": lambda z, y: package.entmax_bisect_loss(z, y, 1.3).mean(),
    }
    return Case(
        title=f"loss, {num_rows} x {num_classes}, trained, peers without shortcut",
        baseline="cross_entropy",
        candidates={name: loss_step(loss, z, y) for name, loss in losses.items()},
        rounds=2,
    )


def flat_loss(num_rows: int = 256, num_classes: int = 50_000) -> Case:
    z, y = logits("0.3", num_rows, num_classes), targets(num_rows, num_classes)
    losses = {"cross_entropy": F.cross_entropy, **impls({"entmax 1.3": partial(entmax_loss, alpha=1.3)}, {}, {})[0]}
    return Case(
        title=f"loss, {num_rows} x {num_classes}, std 0.3, support of thousands",
        baseline="cross_entropy",
        candidates={name: loss_step(loss, z, y) for name, loss in losses.items()},
        rounds=5,
    )


def bfloat16_loss(num_rows: int = 256, num_classes: int = 50_000) -> Case:
    z, y = logits("trained", num_rows, num_classes).to(torch.bfloat16), targets(num_rows, num_classes)
    ours, targets_of = impls({"entmax15": entmax15_loss}, {"entmax15": 1.2}, {"entmax15": 0.2})
    losses = {
        "cross_entropy": F.cross_entropy,
        **ours,
        FLOOR: loss_floor,
        "entmax package: entmax15, k=100": lambda z, y: package.entmax15_loss(z, y, k=100).mean(),
    }
    return Case(
        title=f"loss, {num_rows} x {num_classes}, trained, bfloat16",
        baseline="cross_entropy",
        candidates={name: loss_step(loss, z, y) for name, loss in losses.items()},
        targets=targets_of,
        parts=loss_parts("entmax15", z, y, 1.5),
        rounds=7,
    )


def _regime(kind: str) -> str:
    return kind if kind == "trained" else f"std {kind}"


CASES = [
    partial(sparse_losses, "trained"),
    partial(sparse_losses, "1.0"),
    partial(sparse_losses, "0.3"),
    flat_loss,
    bfloat16_loss,
    exact_peer,
]
QUICK = [partial(sparse_losses, "trained", 8, 2000)]
