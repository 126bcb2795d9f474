"""Losses of the targets that training knows beside classes, against cross-entropy of the same targets."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from hf_sparse.losses import alpha_relu_loss, entmax_loss, softmax_loss

from ._case import Case
from ._impls import impls
from ._inputs import logits, targets
from ._step import loss_step

KINDS = ("ignored rows", "class weights", "label smoothing", "distributions")
SHAPES = ((256, 50_257), (256, 1000))


def options_case(kind: str, dtype: torch.dtype, num_rows: int, num_classes: int) -> Case:
    z, y, options = logits("trained", num_rows, num_classes).to(dtype), targets(num_rows, num_classes), {}
    if kind == "ignored rows":
        y[::3] = -100
    elif kind == "class weights":
        options["weight"] = torch.rand(num_classes, generator=torch.Generator().manual_seed(2)).to(dtype)
    elif kind == "label smoothing":
        options["label_smoothing"] = 0.1
    else:
        y = torch.softmax(logits("1.0", num_rows, num_classes), -1)

    def cross_entropy(z: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(z, y.to(dtype) if y.is_floating_point() else y, **options)

    own = {
        "entmax15": partial(entmax_loss, alpha=1.5),
        "entmax 1.3": partial(entmax_loss, alpha=1.3),
        "alpha-ReLU": partial(alpha_relu_loss, alpha=1.5, tau=3.0),
    }
    ours = impls({name: partial(loss, target=y, **options) for name, loss in own.items()}, {}, {})[0]
    losses = {"cross_entropy": cross_entropy, "softmax": partial(softmax_loss, target=y, **options), **ours}
    return Case(
        title=f"loss of {kind}, {num_rows} x {num_classes}, {str(dtype).removeprefix('torch.')}",
        baseline="cross_entropy",
        candidates={name: loss_step(loss, z) for name, loss in losses.items()},
        rounds=5,
    )


CASES = [
    partial(options_case, kind, dtype, *shape)
    for shape in SHAPES
    for dtype in (torch.float32, torch.bfloat16)
    for kind in KINDS
]
QUICK = [partial(options_case, kind, torch.float32, 4, 300) for kind in KINDS]
