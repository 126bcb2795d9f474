"""entmax attention by the package adasplash (Gonçalves et al. 2025), where it is installed, for what it supports."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from ._call import AttentionCall

_HEAD_DIMS = (16, 32, 64, 128, 256)
_FEWEST_TOKENS = 64


def _unavailable(device: torch.device) -> str | None:
    """Why the package cannot be used on ``device``, or None."""
    if find_spec("adasplash") is None:
        return "needs the package adasplash, which is not installed: pip install adasplash"
    if device.type != "cuda":
        return f"runs on NVIDIA GPUs; the queries were on {device.type}"
    return None


def adasplash_problem(call: AttentionCall, alpha: Any) -> str | None:
    """Why adasplash cannot serve a call of entmax, or None."""
    query, key, value = call.query, call.key, call.value
    head_dim, num_tokens = query.shape[3], query.shape[2]
    wrong = _unavailable(query.device)
    if wrong is not None:
        return wrong
    if torch.is_tensor(alpha):
        return "takes one number for alpha, was one a head"
    if not 1 < alpha <= 2:
        return f"takes alpha in (1, 2], was {alpha:g}"
    if query.dtype not in (torch.float16, torch.bfloat16) or not query.dtype == key.dtype == value.dtype:
        dtypes = ", ".join(str(x.dtype) for x in (query, key, value))
        return f"takes queries, keys and values of torch.float16 or torch.bfloat16, were {dtypes}"
    if head_dim not in _HEAD_DIMS or key.shape != value.shape:
        return f"takes heads of {', '.join(map(str, _HEAD_DIMS))} dimensions, were {head_dim} and {value.shape[3]}"
    if num_tokens != key.shape[2] or num_tokens < _FEWEST_TOKENS:
        return f"takes as many queries as keys, at least {_FEWEST_TOKENS}, were {num_tokens} and {key.shape[2]}"
    for name, given in (("a softcap", call.softcap), ("position_bias", call.position_bias), ("sinks", call.s_aux)):
        if given is not None:
            return f"knows no {name.removeprefix('a ')}, and {name} was given"
    if abs(call.scaling * head_dim**0.5 - 1) > 1e-6:
        return f"divides dot products by sqrt({head_dim}), and scaling was {call.scaling:g}"
    if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad) and not query.requires_grad:
        return "fails where keys or values want a gradient and queries do not"
    pattern = None if call.window is not None else _pattern(call)
    if pattern is None:
        return "takes masks that hide later keys, padding on the right, or both"
    if query.shape[1] != key.shape[1] and not (pattern[0] and alpha == 1.5):
        return (
            f"shares keys between heads only at alpha = 1.5 with a causal mask, were {query.shape[1]} heads to "
            f"{key.shape[1]} and alpha = {alpha:g}"
        )
    return None


def _pattern(call: AttentionCall) -> tuple[bool, Tensor | None] | None:
    """Whether later keys are hidden, and the lengths (batch,) of sequences padded on the right; None for other masks.

    The host waits for the device to look at a mask.
    """
    if call.mask is None:
        return call.causal, None
    if isinstance(call.mask, BlockMask):
        return None
    mask, num_tokens = call.mask, call.query.shape[2]
    visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    if mask.dtype != torch.bool and bool((mask * visible).any()):
        return None
    visible = visible.expand(call.query.shape[0], -1, num_tokens, -1)
    lengths = visible[:, 0, -1].sum(-1, dtype=torch.int32)
    key = torch.arange(num_tokens, device=mask.device)
    inside = (key < lengths[:, None])[:, None, None]
    if mask.shape[2] == 1:  # the same keys for all queries: no matrix is needed
        return (call.causal, lengths) if bool((visible[:, :, :1] == inside).all()) else None
    for causal in (True, False):
        hidden = inside & (key <= key[:, None]) if causal else inside
        if bool((visible == hidden).all()):
            return causal, lengths
    return None


def adasplash_output(call: AttentionCall, alpha: float) -> Tensor:
    """The output (batch, heads, queries, value_dim) of a call that adasplash can serve; zeros for padded queries."""
    query, key, value = (x.contiguous() for x in (call.query, call.key, call.value))
    pattern = _pattern(call)
    assert pattern is not None
    causal, lengths = pattern
    batch, _, num_tokens, _ = query.shape
    if lengths is None and num_tokens & (num_tokens - 1):
        # Lengths that are no power of two have to be given.
        lengths = torch.full((batch,), num_tokens, dtype=torch.int32, device=query.device)
    attend = importlib.import_module("adasplash").adasplash
    return attend(query, key, value, alpha=alpha, is_causal=causal, varlen=lengths)
