"""Activation checkpointing that does not search the same thresholds twice."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

# Operators that search a threshold and whose results are small beside what they read.
_KEPT = ("hf_sparse::entmax_attention", "hf_sparse::solve_rows")


def keep_thresholds() -> tuple[AbstractContextManager, AbstractContextManager]:
    """A ``context_fn`` of ``torch.utils.checkpoint``: flash attention is computed once, all else again.

    Kept of each call are its output, four bytes a query and head for the thresholds, and a byte a tile for where the
    support is. What torch computes in place of the kernels is not kept.

    Returns:
        Two contexts, for the forward and for the recomputation.

    >>> import torch
    >>> from torch.utils.checkpoint import checkpoint
    >>> x = torch.ones(2, requires_grad=True)
    >>> checkpoint(torch.exp, x, use_reentrant=False, context_fn=keep_thresholds)
    tensor([2.7183, 2.7183], grad_fn=<ExpBackward0>)
    """
    return create_selective_checkpoint_contexts(_policy)


def _policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op.name() in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
