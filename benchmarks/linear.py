"""Fused linear losses against the linear layer followed by cross-entropy; forward and backward."""

from __future__ import annotations

from functools import partial

import entmax as package
import torch
import torch.nn.functional as F
from torch import Tensor

from hf_sparse.functional import entmax_threshold
from hf_sparse.losses import entmax15_loss, linear_alpha_relu_loss, linear_entmax_loss, linear_sparsemax_loss

from ._case import Case
from ._impls import impls, kernel
from ._inputs import linear_layer
from ._step import loss_step


def candidates(tau: float) -> dict:
    own = {
        "linear_entmax_loss 1.5": linear_entmax_loss,
        "linear_sparsemax_loss": linear_sparsemax_loss,
        "linear_alpha_relu_loss": partial(linear_alpha_relu_loss, alpha=1.5, tau=tau),
    }
    return {
        "linear + cross_entropy": lambda h, w, y: F.cross_entropy(F.linear(h, w), y),
        **impls(own, {}, {})[0],
        "linear + entmax15_loss": lambda h, w, y: entmax15_loss(F.linear(h, w), y),
        "linear + entmax package, k=100": lambda h, w, y: package.entmax15_loss(F.linear(h, w), y, k=100).mean(),
    }


KINDS = {"trained": "trained", "mixed": "trained, one row in 50 flat"}
TARGETS = {"linear_entmax_loss 1.5": 0.35, "linear_sparsemax_loss": 0.35, "linear_alpha_relu_loss": 0.35}
if kernel():
    TARGETS |= {f"{name}, cpp": 0.3 for name in TARGETS}


def products(hidden: Tensor, weight: Tensor, num_rows: int = 335) -> None:
    """The forward product alone, in chunks as the fused losses take them."""
    out = hidden.new_empty(num_rows, len(weight))
    for rows in hidden.split(num_rows):
        torch.mm(rows, weight.t(), out=out[: len(rows)])


def fused(kind: str, num_rows: int = 2048, width: int = 512, num_classes: int = 50_000) -> Case:
    hidden, weight, y = linear_layer(kind, num_rows, width, num_classes)
    tau = float(entmax_threshold(hidden[:16] @ weight.t()).mean())
    product = partial(products, hidden, weight)
    return Case(
        title=f"fused, N {num_rows}, D {width}, V {num_classes}, {KINDS.get(kind, f'std {kind}')}",
        baseline="linear + cross_entropy",
        candidates={name: loss_step(loss, hidden, weight, y) for name, loss in candidates(tau).items()},
        targets=TARGETS if kind == "trained" else {},
        parts={name: {"forward product": product} for name in TARGETS} if kind == "trained" else {},
        rounds=5,
    )


CASES = [partial(fused, kind) for kind in ("trained", "mixed", "0.3")]
QUICK = [partial(fused, "trained", 32, 16, 2000)]
