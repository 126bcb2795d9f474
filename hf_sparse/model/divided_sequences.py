"""Sequences that Accelerate divides among processes, of which sparse attention would see one part: refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..attention.site import attention_sites
from .patch import Patch


def _prepare(original: Callable[..., Any], self: Any, *args: object, **kwargs: object) -> Any:
    """``Accelerator.prepare``; a threshold of sparse attention is that of a whole row of scores."""
    # Older versions divide by cp_size alone.
    sizes = {name: getattr(self.parallelism_config, name, 1) for name in ("cp_size", "sp_size")}
    divided = ", ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
    for model in args:
        if divided and isinstance(model, nn.Module) and attention_sites(model):
            raise ValueError(
                f"{divided} divides sequences among processes, and the sparse attention of this "
                f"{type(model).__name__} would see one part of them; leave it 1, or make the head alone sparse: "
                "sparsify(model, head=...)"
            )
    return original(self, *args, **kwargs)


OF_ACCELERATE = (
    Patch(
        "accelerate:Accelerator",
        "prepare",
        _prepare,
        reason="Under context or sequence parallelism sparse attention would take the keys of one process for all.",
        after="accelerate.accelerator",
    ),
)
