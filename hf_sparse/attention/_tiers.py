"""Which tier computes a call of attention: torch, which writes the scores down, or the flash kernels, which do not."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..functional import entmax
from ..functional._newton import exponent_of
from ..kernels import (
    HIGHEST_ALPHA,
    LOWEST_ALPHA,
    LOWEST_ATTENTION_ALPHA,
    triton_attention,
    triton_attention_problem,
    triton_decode_scores,
    triton_decode_values,
    triton_is_automatic,
)
from ._scores import biased_scores
from ._site import SITE, AttentionSite, attention_sites, settings_by_head

IMPLS = ("auto", "torch", "triton")


class AttentionCall(NamedTuple):
    """One call of the attention interface, every argument with the meaning it has in ``sparse_attention``.

    Attributes:
        causal: hide later keys.
        query_sinks: ``sinks`` of ``sparse_attention``.
        wants_weights: whether somebody asked for the matrix of weights.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scaling: float
    causal: bool
    dropout: float
    softcap: float | None
    position_bias: Tensor | None
    s_aux: Tensor | None
    query_sinks: Tensor | None
    indices: Tensor | None
    wants_weights: bool


def set_impl(model: nn.Module, impl: str) -> None:
    """Say what computes the sparse attention of ``model``.

    Args:
        model: what ``sparsify`` made sparse in its attention.
        impl: ``"torch"`` writes all scores down and maps them, for any map, on any device, and returns the weights;
            ``"triton"`` never holds them (see docs/gpu.md), and raises where it cannot serve a call; ``"auto"``, the
            start, is Triton on a GPU where the kernels pass their check, for the calls they can serve, else torch.

    Raises:
        ValueError: an unknown ``impl``; no sparse attention; or ``"triton"`` for a module with a softmax of its own.
    """
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(map(repr, IMPLS))}, was {impl!r}")
    sites = [site for _, site in attention_sites(model)]
    if not sites:
        raise ValueError("the model has no sparse attention; make it sparse first: sparsify(model, attn=...)")
    inline = [site.path for site in sites if site.inline]
    if impl == "triton" and inline:
        raise ValueError(
            f'the attention at {inline[0]!r} computes its scores itself, which impl="triton" cannot replace; '
            'use impl="auto"'
        )
    for site in sites:
        site.impl = impl


def flash_output(module: nn.Module, call: AttentionCall) -> Tensor | None:
    """The output (batch, queries, heads, value_dim) by the flash kernels, or None where torch is to compute it.

    Raises:
        ValueError: the site insists on ``"triton"``, which cannot serve this call; the message names the reason.
    """
    site: AttentionSite = module.__dict__[SITE]
    if site.impl == "torch" or (site.impl == "auto" and call.query.device.type == "cpu"):
        return None
    alpha = _alpha(module, call)
    problem = _problem(site, call, alpha)
    if problem is not None:
        if site.impl == "auto":
            return None
        raise ValueError(f'impl="triton" {problem}; use set_impl(model, "auto") or set_impl(model, "torch")')
    if site.impl == "auto" and not triton_is_automatic("attention", call.query.device):
        return None
    query, key, value = call.query, call.key, call.value
    differentiable = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    if query.shape[2] == 1 and not differentiable and not torch.is_tensor(alpha) and alpha >= LOWEST_ALPHA:
        return _one_query(call, alpha).transpose(1, 2)
    return triton_attention(
        query, key, value, alpha, 0.0 if torch.is_tensor(alpha) else exponent_of(alpha), scaling=call.scaling,
        causal=call.causal, softcap=call.softcap, bias=call.position_bias, mask=call.mask, sinks=call.s_aux,
    ).transpose(1, 2)  # fmt: skip


def _one_query(call: AttentionCall, alpha: float) -> Tensor:
    """Decoding (batch, heads, 1, value_dim): the scores of one query are a row, and few values have weight."""
    scores = triton_decode_scores(call.query, call.key, call.scaling)
    scores = biased_scores(scores, call.mask, call.softcap, call.position_bias)
    if call.s_aux is not None:
        sinks = call.s_aux.to(scores.dtype).view(1, -1, 1, 1).expand(scores.shape[0], -1, 1, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    return triton_decode_values(entmax(scores, alpha, impl="triton"), call.value)


def _alpha(module: nn.Module, call: AttentionCall) -> Any:
    """The alpha of the module's entmax: a number, or (heads,); None where its map is another one."""
    choice = module.__dict__[SITE].choice
    if choice is None or choice.spelled_out.name != "entmax":
        return None
    return settings_by_head(choice, module, call.query).get("alpha", choice.spelled_out.map_settings["alpha"])


def _problem(site: AttentionSite, call: AttentionCall, alpha: Any) -> str | None:
    """Why the flash kernels cannot serve a call, or None."""
    if alpha is None:
        name = "softmax" if site.choice is None else site.choice.name
        return f"computes maps of the entmax family, not {name}"
    if site.choice is not None and site.choice.temperature != 1:
        return f"does not divide scores by a temperature, which was {site.choice.temperature}"
    if site.choice is not None and site.choice.scaled_by_length:
        return "does not scale scores by the number of keys (delta, beta, gamma)"
    unseen = torch.is_tensor(alpha) and torch.compiler.is_compiling()  # a compiler cannot look at the values
    if not unseen:
        low, high = (alpha.min(), alpha.max()) if torch.is_tensor(alpha) else (alpha, alpha)
        if not LOWEST_ATTENTION_ALPHA <= float(low) <= float(high) <= HIGHEST_ALPHA:
            allowed = f"[{LOWEST_ATTENTION_ALPHA}, {HIGHEST_ALPHA}]"
            return f"takes alpha in {allowed}, was {float(low):g} at least and {float(high):g} at most"
    if call.dropout > 0:
        return f"does not drop weights, and dropout was {call.dropout}"
    if call.wants_weights or site.counts is not None or site.watch is not None:
        return "does not return weights, which were asked for (output_attentions, observe, or calibration)"
    if call.query_sinks is not None:
        return "takes a sink for each head, and a sink for each query was given"
    if call.indices is not None:
        return "does not take the keys that an indexer selected"
    for name, bias in (("position_bias", call.position_bias), ("attention_mask", call.mask)):
        if bias is not None and bias.requires_grad and torch.is_grad_enabled():
            return f"gives no gradient to {name}, which asks for one"
    return triton_attention_problem(call.query, call.key, call.value)
