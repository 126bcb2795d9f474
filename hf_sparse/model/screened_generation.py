"""``generate(cache_implementation="screened")``: which models can have it, and where their cache comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from typing import Any

from transformers import Cache, DynamicCache, EncoderDecoderCache, GenerationConfig, PreTrainedModel

from ..attention.screened_cache import ScreenedCache
from ..attention.site import AttentionSite, attention_sites
from ..cache_name import CACHE, cache_in
from ..kernels import attention_alpha_problem

SCREENED = "screened"
_ENTMAX_ONLY = (
    'cache_implementation="screened" needs attention of the entmax family (alpha from 1.02 to 2) on a CPU: {}; '
    "leave it out"
)
_asked: ContextVar[bool] = ContextVar("asked for a screened cache", default=False)


def check_screened(model: PreTrainedModel, kwargs: Mapping[str, object]) -> None:
    """Refuse models and arguments of ``generate`` for which a screened cache would read everything.

    Raises:
        ValueError: no sparse attention in the decoder that the kernel computes; a model on another device, or one
            whose ``generate`` is not that of Transformers; another cache, or none, was asked for.
    """
    if cache_in(kwargs) is not None or kwargs.get("use_cache") is False:
        raise ValueError(
            f'cache_implementation="screened" makes a cache of its own: leave {CACHE} and use_cache=False out'
        )
    if "model_kwargs" not in signature(model._dense_class._prepare_cache_for_generation).parameters:
        raise ValueError(
            f"{model._dense_class.__name__} prepares the cache of its generate in its own way, which "
            'cache_implementation="screened" does not know; leave it out'
        )
    if model.device.type != "cpu":
        raise ValueError(_ENTMAX_ONLY.format(f"this model is on {model.device}"))
    sites = [site for _, site in attention_sites(model) if site.kind != "encoder"]
    problems = [_site_problem(site) for site in sites]
    if None not in problems:
        raise ValueError(_ENTMAX_ONLY.format(problems[0] if problems else "this model has no sparse attention"))


def _site_problem(site: AttentionSite) -> str | None:
    if site.inline:
        return f"{site.path!r} computes its scores itself"
    if site.map_config is None or not site.map_config.is_entmax:
        map_name = "softmax" if site.map_config is None else site.map_config.name
        return f"{site.path!r} has {map_name}"
    alpha = site.map_config.entmax_settings["alpha"]
    alphas = alpha if isinstance(alpha, list) else [alpha]
    if "alpha" not in site.map_config.learned and attention_alpha_problem(min(alphas), max(alphas)) is not None:
        return f"{site.path!r} has an alpha of {' and '.join(f'{each:g}' for each in sorted(set(alphas)))}"
    return f"{site.path!r} is sequential" if site.is_sequential else None


@contextmanager
def screened_caches(asked: bool) -> Iterator[None]:
    """Run the block as a call of ``generate`` that was asked for screened caches, or was not."""
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)


def asked_for_screened() -> bool:
    """Whether the innermost call of ``generate`` was asked for screened caches."""
    return _asked.get()


def screen_cache(model: PreTrainedModel, generation_config: GenerationConfig, model_kwargs: dict[str, Any]) -> None:
    """Put screened caches in the place of those that ``generate`` has prepared.

    Raises:
        ValueError: the model has no cache of keys and values, or one of its own.
    """
    made = model_kwargs.get(CACHE)
    if isinstance(made, EncoderDecoderCache):
        parts: tuple[Cache, ...] = (made.self_attention_cache, made.cross_attention_cache)
    else:
        parts = (made,)
    if any(type(part) is not DynamicCache or part.offloading for part in parts):
        raise ValueError(
            f'cache_implementation="screened" takes the place of a DynamicCache, and {type(model).__name__} has '
            f"{', '.join(type(part).__name__ for part in parts)}; leave it out"
        )
    config = model.config.get_text_config(decoder=True)
    # Some models with sliding windows have none in cross-attention (T5Gemma).
    has_windows = [number == 0 or any(layer.is_sliding for layer in part.layers) for number, part in enumerate(parts)]
    screened = [ScreenedCache(config=config if windows else None) for windows in has_windows]
    if not any(cache.is_screened for cache in screened):
        raise ValueError(
            f'cache_implementation="screened": {type(model).__name__} has no layer that caches keys and values alone, '
            "without a sliding window; leave it out"
        )
    model_kwargs[CACHE] = EncoderDecoderCache(*screened) if len(parts) > 1 else screened[0]
    if generation_config.is_assistant:
        model_kwargs[CACHE].activate_past_recording()
