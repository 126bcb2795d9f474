"""Activation checkpointing that does not search the same thresholds twice."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

# Operators that search thresholds, and whose results are small beside their inputs.
_KEPT = ("hf_sparse::entmax_attention", "hf_sparse::solve_rows")


def keep_thresholds() -> tuple[AbstractContextManager, AbstractContextManager]:
    """A ``context_fn`` for ``torch.utils.checkpoint`` that recomputes everything but flash attention.

    Each call keeps its output, four bytes per query and head for the thresholds, and one byte per tile to mark the
    support. Attention that torch computes in place of the kernels is recomputed.

    Returns:
        Two contexts, for the forward pass and for the recomputation.

    >>> import torch
    >>> from torch.utils.checkpoint import checkpoint
    >>> x = torch.ones(2, requires_grad=True)
    >>> checkpoint(torch.exp, x, use_reentrant=False, context_fn=keep_thresholds)
    tensor([2.7183, 2.7183], grad_fn=<ExpBackward0>)
    """
    return create_selective_checkpoint_contexts(_policy)


def _policy(ctx: object, op: OpOverload, *args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op.name() in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
