"""Attention that follows what its keys received: where a credit comes from, and where what was spent is kept."""

from __future__ import annotations

import inspect
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer

from ..config import MapConfig
from ..functional.rows import accumulation_dtype
from ..settings import ON_SCORES, PerHead
from ._constrained import constrained_attention
from ._site import SITE, AttentionSite, settings_by_head
from ._spent import SpentLayer


def constrained_weights(
    module: nn.Module,
    scores: Tensor,
    num_keys: int,
    fertility: float | Tensor | None,
    cache: Cache | None,
    target_mask: Tensor | None,
) -> Tensor:
    """The weights of ``scores`` under the credit that the keys of the site on ``module`` have left.

    Args:
        module: an attention module with a site whose map is constrained.
        scores: (batch, heads, queries, columns); columns after the keys are sinks, which have no bound.
        num_keys: number of keys.
        fertility: what came with the call: a number, or (batch, source length) for cross-attention; None for nothing.
        cache: where keys of earlier calls are, and what they have received; None where all queries are in this call.
        target_mask: (batch, target length so far), 0 for padding, which spends nothing; None for no padding.

    Returns:
        Weights (batch, heads, queries, columns or one more), dtype of ``scores``.

    Raises:
        ValueError: no fertility, one of another shape, or one used up; or a cache that cannot be followed.
    """
    site: AttentionSite = module.__dict__[SITE]
    map_config, dtype = cast(MapConfig, site.map_config), scores.dtype
    by_head = {name: values.view(-1, 1, 1) for name, values in settings_by_head(map_config, module, scores).items()}
    settings: dict[str, Any] = map_config.map_settings | by_head
    scores = map_config.scores(scores, **{name: value for name, value in by_head.items() if name in ON_SCORES})
    if settings["sink"]:
        # A key and a value of zeros at the end of every sentence, whatever its padding: score 0 unless it is learned.
        score = torch.as_tensor(settings["sink_score"], dtype=scores.dtype, device=scores.device)
        scores = torch.cat([scores, score.expand(*scores.shape[:-1], 1)], -1)
    layer, first_step = spent_layer(module, cache, scores.shape[2])
    credit = _fertility(module, site, settings, fertility, scores, num_keys)
    spent = None if layer is None else layer.spent_before(first_step, num_keys)
    if spent is not None:
        credit = credit - spent
    bounds = cast(Any, site.map_config).map.bounds
    exhaustion = settings["exhaustion"]
    spending = spending_queries(target_mask, scores)
    weights = constrained_attention(
        bounds,
        scores,
        nn.functional.pad(credit, (0, scores.shape[-1] - num_keys), value=torch.inf),
        exhaustion.squeeze(-1) if torch.is_tensor(exhaustion) else exhaustion,
        shared=settings["shared"],
        detach=settings["detach"],
        spending=spending,
        first_step=first_step,
    )
    if layer is not None:
        taken = weights[..., :num_keys].to(credit.dtype)
        taken = taken.mean(1, keepdim=True) if settings["shared"] else taken
        layer.spend(taken if spending is None else taken * spending[:, None, :, None])
    return weights.to(dtype)


def _fertility(
    module: nn.Module,
    site: AttentionSite,
    settings: dict[str, Any],
    given: float | Tensor | None,
    scores: Tensor,
    num_keys: int,
) -> Tensor:
    """The fertility of every key (batch or 1, heads or 1, keys), in float32 or float64."""
    precision = accumulation_dtype(scores)
    name = type(module).__name__
    if torch.is_tensor(given) and site.kind == "cross":
        shape = (scores.shape[0], num_keys)
        if given.shape != shape:
            raise ValueError(
                f"fertility must be a number or a tensor (batch, source length), {shape} here, was of shape "
                f"{tuple(given.shape)}"
            )
        return given.to(scores.device, precision)[:, None]
    value = settings["fertility"] if given is None or torch.is_tensor(given) else given
    if isinstance(value, str):
        how = "" if value == "given" else "input_ids, from which the model works it out, or "
        raise ValueError(
            f'the attention of {name} was made with fertility="{value}": pass {how}fertility, a number or a tensor '
            "(batch, source length), with every call of the model or of generate"
        )
    value = torch.as_tensor(value, dtype=precision, device=scores.device)
    return value.reshape(1, -1, 1).expand(1, -1, num_keys)


def spending_queries(target_mask: Tensor | None, scores: Tensor) -> Tensor | None:
    """Which queries (batch, queries) of scores (batch, heads, queries, ...) are no padding; None for all."""
    if target_mask is None:
        return None
    return target_mask[:, -scores.shape[2] :].expand(len(scores), scores.shape[2]) > 0


def spent_layer(module: nn.Module, cache: Cache | None, num_queries: int) -> tuple[SpentLayer | None, int]:
    """The layer of the cache that holds what this site's keys received, and how many queries came before these.

    Raises:
        ValueError: a cache that cannot be followed.
    """
    if cache is None:
        return None, 0
    site: AttentionSite = module.__dict__[SITE]
    index, name = getattr(module, "layer_idx", None), type(module).__name__
    target, source = (
        (cache.self_attention_cache, cache.cross_attention_cache)
        if isinstance(cache, EncoderDecoderCache)
        else (cache, None)
    )
    held_in = source if site.kind == "cross" else target
    if index is None or held_in is None:
        raise ValueError(f"{name} does not say where in the cache its keys are; pass use_cache=False")
    layer = held_in.layers[index]
    if type(layer) not in (DynamicLayer, SpentLayer):
        raise ValueError(
            f"attention with bounds or coverage follows a dynamic cache, and {name} was given one of "
            f"{type(layer).__name__}; leave out cache_implementation, or bound only layers that attend to all keys"
        )
    if not isinstance(layer, SpentLayer):
        layer = held_in.layers[index] = SpentLayer(layer)
    return layer, target.get_seq_length(index) - num_queries


def hand_on_cache(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """A forward pre-hook: the attention function gets what the module does not hand it, the cache."""
    return args, {**kwargs, "credit_cache": kwargs.get("past_key_values")}


def follow_cache(module: nn.Module, site: AttentionSite) -> None:
    """Let ``module`` hand its cache on to its attention function, if what its keys received is followed."""
    if site.is_sequential:
        site.hook = module.register_forward_pre_hook(hand_on_cache, with_kwargs=True)


def credit_refusal(module: nn.Module, site: AttentionSite) -> str | None:
    """Why the map of ``site`` cannot follow what the keys of ``module`` received, or None."""
    if site.map_config is None or not site.is_sequential:
        return None
    name = "coverage" if site.has_coverage else site.map_config.name
    where = f"{type(module).__name__} at {site.path!r}"
    if site.has_coverage and site.kind != "cross":
        return f'coverage is what words of a source received, and {where} is self-attention; give a kind, "cross"'
    if site.kind == "encoder":
        return f'{name} bounds what a decoder spends word by word, and {where} is an encoder\'s; give a kind, "cross"'
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(type(module).forward).parameters.values())
    if site.inline or not takes_any:
        return f"{where} does not go through Transformers' attention interface with its arguments, as {name} needs"
    if not site.is_constrained:
        return None
    settings = site.map_config.map_settings
    if settings["shared"] and isinstance(site.map_config.value("fertility"), PerHead):
        return f"fertility by head and shared=True contradict each other at {site.path!r}; give {name} one number"
    if site.kind != "cross" and isinstance(settings["fertility"], str):
        return (
            f"{where} is self-attention, whose keys are not known beforehand: "
            f'fertility="{settings["fertility"]}" is for cross-attention'
        )
    return None


def check_fertility(fertility: Any) -> None:
    """Raise unless ``fertility`` is a number or a tensor of numbers, none of them negative or NaN.

    Raises:
        TypeError: something else.
        ValueError: a negative entry or NaN.
    """
    if torch.is_tensor(fertility):
        if fertility.dtype == torch.bool or fertility.is_complex():
            raise TypeError(f"fertility must be a number or a tensor of numbers, was of dtype {fertility.dtype}")
        bad = ~(fertility >= 0)
        if bool(bad.any()):
            place = bad.nonzero()[0].tolist()
            raise ValueError(f"fertility must be >= 0, was {float(fertility[tuple(place)]):g} at {place}")
    elif isinstance(fertility, bool) or not isinstance(fertility, int | float):
        raise TypeError(
            f"fertility must be a number or a tensor (batch, source length), was {type(fertility).__name__}"
        )
    elif not fertility >= 0:
        raise ValueError(f"fertility must be >= 0, was {fertility}")
