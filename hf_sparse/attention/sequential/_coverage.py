"""Attention with coverage vectors: what a key received at earlier steps goes into its score."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ...functional.rows import upcast
from .._call import AttentionCall
from ..site import learned_name, weigh
from ._steps import Steps


def covered_weights(module: nn.Module, call: AttentionCall, scores: Tensor) -> Tensor:
    """The weights of ``scores`` with coverage; see ``sequential_weights``.

    Args:
        module: an attention module with such a site; it holds the vectors.
        call: the call.
        scores: (batch, heads, queries, columns); columns after the keys are sinks, which have no coverage.

    Returns:
        Weights (batch, heads, queries, columns), dtype of ``scores``.

    Raises:
        ValueError: capped scores, or a cache that cannot be followed.
    """
    if call.softcap is not None:
        raise ValueError(
            f"{type(module).__name__} caps its scores, and coverage is not part of what it caps; leave coverage out"
        )
    z, num_keys = upcast(scores), call.key.shape[2]
    vectors = getattr(module, learned_name("coverage"))(scores).to(call.query.dtype)
    slope = upcast(call.query @ vectors[..., None] * call.scaling)  # rise of a score where its key has received 1
    steps = Steps.of(module, call)
    before = steps.received(num_keys)
    received = z.new_zeros(*z.shape[:2], num_keys) if before is None else before
    received = nn.functional.pad(received, (0, z.shape[-1] - num_keys))
    weights = covered_attention(partial(weigh, module), z, slope, received, steps.spending)
    steps.spend(weights[..., :num_keys])
    return weights.to(scores.dtype)


@torch.compiler.disable  # as many steps as queries
def covered_attention(
    sparse_map: Callable[[Tensor], Tensor], z: Tensor, slope: Tensor, received: Tensor, covering: Tensor | None = None
) -> Tensor:
    """``p_t = map(z_t + s_t c_t)`` with ``c_1 = received`` and ``c_{t+1} = c_t + p_t``, for every query t in turn.

    A coverage vector v makes the key k_j that step t sees ``k_j + c_{t,j} v``, and so ``s_t = q_t . v`` times the
    scaling of scores.

    Args:
        sparse_map: weights of scores (batch, heads, 1, keys), any differentiable map.
        z: scores (batch, heads, queries, keys), float32 or float64; ``-inf`` masks an entry.
        slope: s, (batch, heads, queries, 1).
        received: attention each key has received before (batch, heads, keys), in queries.
        covering: (batch, queries) boolean, False for queries that are padding and cover nothing; None for none.

    Returns:
        Weights, shape and dtype of ``z``. The gradient runs through earlier weights too.

    Source: Malaviya et al. 2018, Section 5 (CovVector), after Tu et al. 2016; there for one attention, here for each
    head by itself.
    Cost: queries times that of the map.

    >>> z = torch.zeros(1, 1, 3, 2) + torch.tensor([1.0, 0.0])
    >>> covered_attention(lambda z: z.softmax(-1), z, torch.full((1, 1, 3, 1), -1.0), torch.zeros(1, 1, 2))[0, 0]
    tensor([[0.7311, 0.2689],
            [0.6313, 0.3687],
            [0.5684, 0.4316]])
    """
    covered, rows = received[:, :, None], []
    covers = [None] * z.shape[2] if covering is None else covering[:, None, :, None].to(z.dtype).split(1, 2)
    for row, rise, share in zip(z.split(1, 2), slope.split(1, 2), covers):
        p = sparse_map(row + rise * covered)
        covered = covered + (p if share is None else share * p)
        rows.append(p)
    return torch.cat(rows, 2)
