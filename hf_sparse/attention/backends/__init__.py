"""Which tier computes a call of attention: torch, which writes the scores down, or one that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from ...functional import entmax
from ...functional.newton import exponent_of
from ...functional.rows import in_graph
from ...kernels import (
    HIGHEST_ALPHA,
    LOWEST_ALPHA,
    LOWEST_ATTENTION_ALPHA,
    triton_attention,
    triton_attention_problem,
    triton_decode_scores,
    triton_decode_values,
    triton_is_automatic,
)
from .._scores import biased_scores
from .._site import SITE, AttentionSite, attention_sites, settings_by_head
from ._adasplash import adasplash_output, adasplash_problem
from ._call import AttentionCall
from ._flex import flex_output, flex_problem


class Tier(NamedTuple):
    """A way to compute entmax attention without its weights.

    Attributes:
        problem: (call, alpha) -> why it cannot serve the call, or None; alpha is a number, or (heads,).
        output: (call, alpha) -> (batch, heads, queries, value_dim).
    """

    problem: Callable[[AttentionCall, Any], str | None]
    output: Callable[[AttentionCall, Any], Tensor]


def set_impl(model: nn.Module, impl: str) -> None:
    """Say what computes the sparse attention of ``model``; docs/gpu.md tells what each of them can serve.

    Args:
        model: what ``sparsify`` made sparse in its attention.
        impl: ``"torch"`` writes all scores down and maps them, for any map, on any device, and returns the weights.
            ``"triton"``, ``"flex"`` (torch's FlexAttention) and ``"adasplash"`` (a package of its own) never hold
            them, and raise where they cannot serve a call. ``"auto"``, the start, is Triton on a GPU where the
            kernels pass their check, for the calls they can serve, else torch.

    Raises:
        ValueError: an unknown ``impl``; no sparse attention; or a tier without weights for a module with a softmax of
            its own.
    """
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(map(repr, IMPLS))}, was {impl!r}")
    sites = [site for _, site in attention_sites(model)]
    if not sites:
        raise ValueError("the model has no sparse attention; make it sparse first: sparsify(model, attn=...)")
    inline = [site.path for site in sites if site.inline]
    if impl in TIERS and inline:
        raise ValueError(
            f'the attention at {inline[0]!r} computes its scores itself, which impl="{impl}" cannot replace; '
            'use impl="auto"'
        )
    for site in sites:
        site.impl = impl


def output_without_weights(module: nn.Module, call: AttentionCall) -> Tensor | None:
    """The output (batch, queries, heads, value_dim) of the site's tier, or None where torch is to compute it.

    Raises:
        ValueError: the site insists on a tier that cannot serve this call; the message names the reason.
    """
    site: AttentionSite = module.__dict__[SITE]
    automatic = "torch" if call.query.device.type == "cpu" else "triton"
    name = automatic if site.impl == "auto" else site.impl
    if name != "torch":
        call = _cast(call)
        alpha = _alpha(module, call)
        problem = _problem(site, call, alpha) or TIERS[name].problem(call, alpha)
        if problem is not None and site.impl != "auto":
            raise ValueError(f'impl="{name}" {problem}; use set_impl(model, "auto") or set_impl(model, "torch")')
        if problem is None and (site.impl != "auto" or triton_is_automatic("attention", call.query.device)):
            return TIERS[name].output(call, alpha).transpose(1, 2).contiguous()
    if isinstance(call.mask, BlockMask):
        raise ValueError('attention_mask was a BlockMask, which FlexAttention takes: use set_impl(model, "flex")')
    return None


def _cast(call: AttentionCall) -> AttentionCall:
    """Under autocast all three are of its dtype, as for torch's own attention; rotary embeddings leave them mixed."""
    device = call.query.device.type
    if not torch.is_autocast_enabled(device):
        return call
    dtype = torch.get_autocast_dtype(device)
    return call._replace(query=call.query.to(dtype), key=call.key.to(dtype), value=call.value.to(dtype))


def _triton_output(call: AttentionCall, alpha: float | Tensor) -> Tensor:
    query, key, value = call.query, call.key, call.value
    assert not isinstance(call.mask, BlockMask)
    differentiable = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    if query.shape[2] == 1 and not differentiable and not torch.is_tensor(alpha) and alpha >= LOWEST_ALPHA:
        return _one_query(call, alpha)
    return triton_attention(
        query, key, value, alpha, 0.0 if torch.is_tensor(alpha) else exponent_of(alpha), scaling=call.scaling,
        causal=call.causal, window=call.window, softcap=call.softcap, bias=call.position_bias, mask=call.mask,
        sinks=call.s_aux,
    )  # fmt: skip


def _triton_problem(call: AttentionCall, alpha: float | Tensor) -> str | None:
    if isinstance(call.mask, BlockMask):
        return "takes a matrix for a mask, was a BlockMask"
    unseen = torch.is_tensor(alpha) and in_graph()  # which cannot look at the values
    if not unseen:
        low, high = (alpha.min(), alpha.max()) if torch.is_tensor(alpha) else (alpha, alpha)
        if not LOWEST_ATTENTION_ALPHA <= float(low) <= float(high) <= HIGHEST_ALPHA:
            allowed = f"[{LOWEST_ATTENTION_ALPHA}, {HIGHEST_ALPHA}]"
            return f"takes alpha in {allowed}, was {float(low):g} at least and {float(high):g} at most"
    return triton_attention_problem(call.query, call.key, call.value)


def _one_query(call: AttentionCall, alpha: float) -> Tensor:
    """Decoding (batch, heads, 1, value_dim): the scores of one query are a row, and few values have weight."""
    assert not isinstance(call.mask, BlockMask)
    scores = triton_decode_scores(call.query, call.key, call.scaling)
    scores = biased_scores(scores, call.mask, call.softcap, call.position_bias)
    if call.s_aux is not None:
        sinks = call.s_aux.to(scores.dtype).view(1, -1, 1, 1).expand(scores.shape[0], -1, 1, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    return triton_decode_values(entmax(scores, alpha, impl="triton"), call.value)


def _alpha(module: nn.Module, call: AttentionCall) -> Any:
    """The alpha of the module's entmax: a number, or (heads,); None where its map is another one."""
    map_config = module.__dict__[SITE].map_config
    if map_config is None or map_config.spelled_out.name != "entmax":
        return None
    return settings_by_head(map_config, module, call.query).get("alpha", map_config.spelled_out.map_settings["alpha"])


def _problem(site: AttentionSite, call: AttentionCall, alpha: Any) -> str | None:
    """Why no tier without weights can serve a call, or None."""
    if alpha is None:
        name = "softmax" if site.map_config is None else site.map_config.name
        return f"computes maps of the entmax family, not {name}"
    if site.map_config is not None and site.map_config.temperature != 1:
        return f"does not divide scores by a temperature, which was {site.map_config.temperature}"
    if site.map_config is not None and site.map_config.scaled_by_length:
        return "does not scale scores by the number of keys (delta, beta, gamma)"
    if site.has_coverage:
        return "does not follow what keys received before (coverage)"
    if call.dropout > 0:
        return f"does not drop weights, and dropout was {call.dropout}"
    if call.wants_weights or site.counts is not None or site.watch is not None:
        return "does not return weights, which were asked for (output_attentions, observe, or calibration)"
    if call.query_sinks is not None:
        return "takes a sink for each head, and a sink for each query was given"
    if call.indices is not None:
        return "does not take the keys that an indexer selected"
    for name, bias in (("position_bias", call.position_bias), ("attention_mask", call.mask)):
        if isinstance(bias, Tensor) and bias.requires_grad and torch.is_grad_enabled():
            return f"gives no gradient to {name}, which asks for one"
    return None


TIERS = {
    "triton": Tier(_triton_problem, _triton_output),
    "flex": Tier(flex_problem, flex_output),
    "adasplash": Tier(adasplash_problem, adasplash_output),
}
IMPLS = ("auto", "torch", *TIERS)
