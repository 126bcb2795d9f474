"""Dispatch of attention calls: torch, which materializes the scores, or a backend that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from ...kernels import triton_is_automatic
from ...tracing import counts_flops
from .._call import AttentionCall
from ..screened_cache import ScreenedLayer, layer_of
from ..site import SITE, AttentionSite, attention_sites, settings_by_head
from ._adasplash import adasplash_output, adasplash_problem
from ._cpp import cpp_is_automatic, cpp_is_first, cpp_output, cpp_problem
from ._flex import flex_entmax_attention as flex_entmax_attention
from ._flex import flex_output, flex_problem
from ._prepared import needs_gradient, preparation_problem, prepared
from ._screened import screened_output
from ._triton import triton_output, triton_problem

Alpha: TypeAlias = "float | Tensor"


class Backend(NamedTuple):
    """A way to compute entmax attention without its weights.

    Attributes:
        problem: (call, alpha) -> the reason why it cannot serve the call, or None; alpha is a number, or (heads,).
        output: (call, alpha) -> (batch, heads, queries, value_dim).
        takes_temperature: whether it divides scores by ``call.temperature``, without a gradient to it. Elsewhere the
            call is divided beforehand.
        is_first: whether ``"auto"`` tries it for a call, before torch; at most one backend says so.
        is_automatic: whether ``"auto"`` takes it for a call that it can serve.
    """

    problem: Callable[[AttentionCall, Alpha], str | None]
    output: Callable[[AttentionCall, Alpha], Tensor]
    takes_temperature: bool = False
    is_first: Callable[[AttentionCall], bool] = lambda call: False
    is_automatic: Callable[[AttentionCall], bool] = lambda call: False


BACKENDS = {
    "cpp": Backend(
        cpp_problem, cpp_output, takes_temperature=True, is_first=cpp_is_first, is_automatic=cpp_is_automatic
    ),
    "triton": Backend(
        triton_problem,
        triton_output,
        is_first=lambda call: call.query.device.type != "cpu",
        is_automatic=lambda call: triton_is_automatic("attention", call.query.device),
    ),
    "flex": Backend(flex_problem, flex_output),
    "adasplash": Backend(adasplash_problem, adasplash_output),
}
ATTENTION_IMPLS = ("auto", "torch", *BACKENDS)


def set_impl(model: nn.Module, impl: str) -> None:
    """Choose what computes the sparse attention of ``model``; docs/gpu.md lists the calls that each can serve.

    Args:
        model: a model with sparse attention.
        impl: ``"torch"`` materializes the scores and maps them: any map, any device, and it returns the weights.
            ``"cpp"`` (on CPUs), ``"triton"``, ``"flex"`` (torch's FlexAttention) and ``"adasplash"`` (a separate
            package) never hold the weights, and raise where they cannot serve a call. ``"auto"``, the default, is the
            C++ kernel on a CPU where it is built or worth building, for many queries and for the few of a decoding
            step, and Triton on a GPU where the kernels pass their self-check, for the calls that they can serve; else
            torch, as also under ``FlopCounterMode``, which would count none of their products.

    Raises:
        ValueError: an unknown ``impl``; no sparse attention; or a backend without weights for a module that computes
            its own softmax.
    """
    for site in _sites_for(model, impl):
        site.impl = impl


def _sites_for(model: nn.Module, impl: str) -> list[AttentionSite]:
    """The sites whose attention ``impl`` is to compute."""
    if impl not in ATTENTION_IMPLS:
        raise ValueError(f"impl must be one of {', '.join(map(repr, ATTENTION_IMPLS))}, was {impl!r}")
    sites = [site for _, site in attention_sites(model)]
    if not sites:
        raise ValueError("the model has no sparse attention; make it sparse first: sparsify(model, attn=...)")
    inline = [site.path for site in sites if site.inline]
    if impl in BACKENDS and inline:
        raise ValueError(
            f'the attention at {inline[0]!r} computes its scores itself, which impl="{impl}" cannot replace; '
            'use impl="auto"'
        )
    return sites


@contextmanager
def computed_by(model: nn.Module, impl: str) -> Iterator[None]:
    """Have another implementation (``set_impl``) compute sparse attention in the block, for its thread alone.

    Raises:
        ValueError: see ``set_impl``.
    """
    with ExitStack() as blocks:
        for site in _sites_for(model, impl):
            blocks.enter_context(site.impls.set(impl))
        yield


def output_without_weights(module: nn.Module, call: AttentionCall) -> Tensor | None:
    """The output (batch, queries, heads, value_dim) of the site's backend, or None where torch is to compute it.

    Raises:
        ValueError: the backend that ``set_impl`` asked for cannot serve this call; the message says why.
        KernelUnavailable: it cannot be built or run here.
    """
    site: AttentionSite = module.__dict__[SITE]
    layer = layer_of(call.key)
    output = None if layer is None else _over_screened_cache(module, layer, call)
    if output is not None:
        return output
    impl = site.impls.innermost(module) or site.impl
    explicit = impl != "auto" and site.map_config is not None  # softmax that was kept stays with torch
    name = impl if explicit else _first_backend(call)
    if name in BACKENDS:
        call, alpha, problem = _for_backend(BACKENDS[name], module, _autocast(call))
        if problem is not None and explicit:
            raise ValueError(f'impl="{name}" {problem}; use hf_sparse.attention.set_impl(model, "auto"), or "torch"')
        if problem is None and (explicit or BACKENDS[name].is_automatic(call)):
            return BACKENDS[name].output(call, alpha).transpose(1, 2).contiguous()
    if isinstance(call.mask, BlockMask):
        if site.map_config is None:
            raise ValueError(
                f"attention_mask was a BlockMask, which {site.path!r} does not take, where softmax was kept: give a "
                "matrix for a mask"
            )
        raise ValueError(
            "attention_mask was a BlockMask, which FlexAttention takes: use hf_sparse.attention.set_impl("
            'model, "flex")'
        )
    return None


def _first_backend(call: AttentionCall) -> str:
    """What ``"auto"`` tries for a call before torch, which alone takes no BlockMask; or torch."""
    if counts_flops() and not isinstance(call.mask, BlockMask):
        return "torch"
    return next((name for name, each in BACKENDS.items() if each.is_first(call)), "torch")


def _over_screened_cache(module: nn.Module, layer: ScreenedLayer, call: AttentionCall) -> Tensor | None:
    """The output over a ``ScreenedCache``, whatever computes the attention of other calls; None to read everything."""
    output = screened_output(layer, *_for_backend(BACKENDS["cpp"], module, call))
    return None if output is None else output.transpose(1, 2).contiguous()


def _autocast(call: AttentionCall) -> AttentionCall:
    """The call in the dtype of autocast, as torch's own attention does; rotary embeddings leave dtypes mixed.

    Autocast leaves float64, which is wider than float32, alone.
    """
    device = call.query.device.type
    if device == "meta" or not torch.is_autocast_enabled(device) or call.query.element_size() > 4:
        return call
    dtype = torch.get_autocast_dtype(device)
    return call._replace(query=call.query.to(dtype), key=call.key.to(dtype), value=call.value.to(dtype))


def _for_backend(
    backend: Backend, module: nn.Module, call: AttentionCall
) -> tuple[AttentionCall, float | Tensor, str | None]:
    """The call as a backend takes it, its alpha, and the reason why the backend cannot serve it, or None."""
    call = call.with_pattern()
    map_config = module.__dict__[SITE].map_config
    if map_config is None or not map_config.is_entmax:
        name = "softmax" if map_config is None else map_config.name
        return call, 1.0, f"computes maps of the entmax family, not {name}"
    by_head = settings_by_head(map_config, module, call.query)
    alpha = by_head.get("alpha", map_config.entmax_settings["alpha"])
    call = call._replace(temperature=by_head.get("temperature", map_config.temperature))
    problem = _call_problem(module, call) or preparation_problem(map_config, call, backend.takes_temperature)
    if problem is None:
        call = prepared(map_config, module, call, backend.takes_temperature)
        problem = backend.problem(call, alpha)
    return call, alpha, problem


def _call_problem(module: nn.Module, call: AttentionCall) -> str | None:
    """The reason why no backend without weights can serve a call of entmax, or None."""
    site: AttentionSite = module.__dict__[SITE]
    if site.has_coverage:
        return "does not follow what keys received before (coverage)"
    observers, watch = site.observers.of(module), site.watches.innermost(module)
    if call.dropout > 0:
        return f"does not drop weights, and dropout was {call.dropout}"
    if call.wants_weights or watch is not None or not all(each.beside for each in observers):
        return "does not return weights, which were asked for (output_attentions, calibration, a price or penalty)"
    if observers and isinstance(call.mask, BlockMask):
        return "does not count supports (observe) under a BlockMask, which gives torch no matrix to count them by"
    if call.query_sinks is not None:
        return "takes a sink for each head, and a sink for each query was given"
    if call.indices is not None:
        return "does not take the keys that an indexer selected"
    for name, bias in (("position_bias", call.position_bias), ("attention_mask", call.mask)):
        if needs_gradient(bias):
            return f"gives no gradient to {name}, which asks for one"
    return None
