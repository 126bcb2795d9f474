"""What must hold of files: two models of one configuration are saved and loaded, each with its own maps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hf_sparse import from_pretrained, is_sparse, save_pretrained, sparse_config, sparsify, unsparsify
from hf_sparse.model.doctor import difference
from hf_sparse.model.saved_config import block_of
from tests.sweep.architectures import spread
from tests.sweep.checks import ABSENT, CheckFailed, run
from tests.sweep.deliveries import Arguments


def reloaded(model: Any) -> Any:
    """A sparse model after a round trip through files."""
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, Path(folder, "model"))
        return from_pretrained(Path(folder, "model"), auto_class=model._dense_class).eval()


@torch.no_grad()
def outputs(model: nn.Module, inputs: Arguments) -> torch.Tensor:
    """The logits of a call; drawn noise is the same at every call."""
    torch.manual_seed(0)
    return run(model, inputs)


def check_twins(model: Any, inputs: Arguments, attention: bool, head: bool) -> str:
    """Two models of one configuration object, with different maps, come back from files with their own.

    Args:
        model: a dense model; its configuration is that of the other.
        inputs: for one forward call.
        attention: whether its attention can be sparse.
        head: whether its head can be.
    """
    if not attention and not head:
        return "nothing to make sparse"
    torch.manual_seed(1)
    shared = model.config
    twins = (model, spread(type(model)(shared).eval()))
    if twins[1].config is not shared:
        return "takes a copy of its configuration"
    first = {"attn": "entmax15" if attention else None, "head": "entmax15" if head else None}
    second = {"attn": "sparsemax"} if attention else {"head": "sparsemax"}
    for twin, maps in zip(twins, (first, second), strict=True):
        sparsify(twin, **maps, example=inputs)
    if block_of(shared) is not None:
        raise CheckFailed("saving: the configuration that both models were built from is marked")
    for twin in twins:
        back = reloaded(twin)
        if not is_sparse(back) or sparse_config(back) != sparse_config(twin):
            raise CheckFailed(f"saving: {sparse_config(twin).to_dict()} comes back {block_of(back.config)}")
        moved = difference(outputs(back, inputs), outputs(twin, inputs))
        unsparsify(twin)
        if moved > 1e-5:
            if dense_moves(twin, inputs):
                return f"{ABSENT} (it comes back another)"
            raise CheckFailed(f"saving: outputs of the loaded model differ by {moved:.1e}")
    return "yes"


def dense_moves(model: Any, inputs: Arguments) -> bool:
    """Whether a dense model comes back from files with other outputs."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        back = type(model).from_pretrained(folder).eval()
    return difference(outputs(back, inputs), outputs(model, inputs)) > 1e-5
