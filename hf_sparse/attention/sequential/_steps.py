"""The queries of one call as steps: how many came before, what those gave each key, and which are padding."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer

from ...cache_name import CACHE, cache_in
from .._call import AttentionCall
from ..site import SITE, AttentionSite
from ._spent import SpentLayer

KEY_CACHE = "key_cache"  # name under which the cache reaches the attention function; modules keep theirs to themselves


@dataclass(frozen=True)
class Steps:
    """The place of one call's queries among all steps of their sequences.

    Attributes:
        first: number of queries in earlier calls.
        spending: (batch, queries), False for queries that are padding and give nothing; None for no padding.
        layer: where the cache keeps what the keys have received; None where every query is in this call.
    """

    first: int
    spending: Tensor | None
    layer: SpentLayer | None

    @classmethod
    def of(cls, module: nn.Module, call: AttentionCall) -> Steps:
        """The steps of a call in ``module``.

        Raises:
            ValueError: a cache that cannot be followed.
        """
        num_queries = call.query.shape[2]
        target_mask: Tensor | None = call.others.get("target_mask")
        spending = None
        if target_mask is not None:
            spending = target_mask[:, -num_queries:].expand(len(call.query), num_queries) > 0
        cache = call.others.get(KEY_CACHE)
        if cache is None:
            return cls(0, spending, None)
        layer, num_seen = _followed(module, cache)
        return cls(num_seen - num_queries, spending, layer)

    def received(self, num_keys: int) -> Tensor | None:
        """Attention (batch, heads or 1, keys) that the keys received in earlier calls; None for none.

        Raises:
            ValueError: the cache holds steps that were not followed; see ``SpentLayer.spent_before``.
        """
        return None if self.layer is None else self.layer.spent_before(self.first, num_keys)

    def spend(self, weights: Tensor) -> None:
        """Keep the weights (batch, heads or 1, queries, keys) of this call for later calls, if there is a cache."""
        if self.layer is not None:
            self.layer.spend(weights if self.spending is None else weights * self.spending[:, None, :, None])


def _followed(module: nn.Module, cache: Cache) -> tuple[SpentLayer, int]:
    """The cache layer of this site's keys, made a ``SpentLayer``, and the target length including this call.

    Raises:
        ValueError: a cache that cannot be followed.
    """
    site: AttentionSite = module.__dict__[SITE]
    index, name = getattr(module, "layer_idx", None), type(module).__name__
    if isinstance(cache, EncoderDecoderCache):
        target = cache.self_attention_cache
        keys = cache.cross_attention_cache if site.kind == "cross" else target
    else:
        target = cache
        keys = None if site.kind == "cross" else target
    if index is None or keys is None:
        raise ValueError(f"{name} does not say where in the cache its keys are; pass use_cache=False")
    layer = keys.layers[index]
    if type(layer) not in (DynamicLayer, SpentLayer):
        raise ValueError(
            f"attention with bounds or coverage follows a dynamic cache, and {name} was given one of "
            f"{type(layer).__name__}; leave out cache_implementation, or bound only layers that attend to all keys"
        )
    if not isinstance(layer, SpentLayer):
        layer = keys.layers[index] = SpentLayer(layer)
    return layer, target.get_seq_length(index)


def pass_cache_on(
    module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Forward pre-hook that passes the cache on to the attention function."""
    return args, {**kwargs, KEY_CACHE: cache_in(kwargs)}


def follow_cache(module: nn.Module, site: AttentionSite) -> None:
    """Make ``module`` pass its cache on to its attention function if its site is sequential."""
    if site.is_sequential:
        site.hook = module.register_forward_pre_hook(pass_cache_on, with_kwargs=True)


def received_names(call: AttentionCall) -> set[str]:
    """Names, as the model's forward has them, of the optional arguments that reached the attention function."""
    names = {"fertility": "fertility", "target_mask": "target_mask", KEY_CACHE: CACHE}
    return {name for key, name in names.items() if call.others.get(key) is not None}
