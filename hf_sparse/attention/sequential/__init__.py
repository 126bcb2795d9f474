"""Sequential attention: the weights of a query depend on what earlier queries gave the keys (bounds, coverage)."""

from __future__ import annotations

from torch import Tensor, nn

from .._call import AttentionCall
from ..site import SITE, AttentionSite
from ._constrained import constrained_attention as constrained_attention
from ._coverage import covered_weights
from ._credit import check_fertility as check_fertility
from ._credit import constrained_weights
from ._refusal import sequential_refusal as sequential_refusal
from ._spent import SpentLayer as SpentLayer
from ._steps import follow_cache as follow_cache
from ._steps import received_names


def sequential_weights(module: nn.Module, call: AttentionCall, scores: Tensor) -> Tensor:
    """The weights of ``scores`` under bounds or coverage.

    Args:
        module: an attention module with a sequential site.
        call: the call. Of its other arguments these are read: ``fertility``, a number or (batch, source length) for
            cross-attention; ``target_mask``, (batch, target length so far), 0 for padding, which gives nothing;
            ``key_cache``, the module's cache.
        scores: (batch, heads, queries, columns); columns after the keys are sinks, which have neither.

    Returns:
        Weights (batch, heads, queries, columns or more), dtype of ``scores``.

    Raises:
        ValueError: a fertility that is missing, of another shape, or used up; a cache that cannot be followed;
            coverage where scores are capped.
    """
    site: AttentionSite = module.__dict__[SITE]
    for observer in site.observers.of(module):
        observer.receive(received_names(call))
    weights = constrained_weights if site.is_constrained else covered_weights
    return weights(module, call, scores)
