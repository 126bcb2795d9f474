"""entmax attention by the package adasplash (Gonçalves et al. 2025), where it is installed, for what it supports."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from .._call import AttentionCall
from ._prepared import visible_by

_HEAD_DIMS = (16, 32, 64, 128, 256)
_FEWEST_TOKENS = 64


def adasplash_problem(call: AttentionCall, alpha: float | Tensor) -> str | None:
    """The reason why adasplash cannot serve a call of entmax, or None."""
    problem = _unavailable(call.query.device)
    if problem is not None:
        return problem
    if torch.is_tensor(alpha):
        return "takes one number for alpha, was one per head"
    if not 1 < alpha <= 2:
        return f"takes alpha in (1, 2], was {alpha:g}"
    return _tensor_problem(call) or _score_problem(call) or _mask_problem(call, alpha)


def _unavailable(device: torch.device) -> str | None:
    """The reason why the package cannot run on ``device``, or None."""
    if find_spec("adasplash") is None:
        return "needs the package adasplash, which is not installed: pip install adasplash"
    if device.type != "cuda":
        return f"runs on NVIDIA GPUs; the queries were on {device.type}"
    return None


def _tensor_problem(call: AttentionCall) -> str | None:
    """Dtypes and shapes that adasplash does not take."""
    query, key, value = call.query, call.key, call.value
    head_dim, num_tokens = query.shape[3], query.shape[2]
    if query.dtype not in (torch.float16, torch.bfloat16) or not query.dtype == key.dtype == value.dtype:
        dtypes = ", ".join(str(x.dtype) for x in (query, key, value))
        return f"takes queries, keys and values of torch.float16 or torch.bfloat16, were {dtypes}"
    if head_dim not in _HEAD_DIMS or key.shape != value.shape:
        return f"takes heads of {', '.join(map(str, _HEAD_DIMS))} dimensions, were {head_dim} and {value.shape[3]}"
    if num_tokens != key.shape[2] or num_tokens < _FEWEST_TOKENS:
        return f"takes as many queries as keys, at least {_FEWEST_TOKENS}, were {num_tokens} and {key.shape[2]}"
    return None


def _score_problem(call: AttentionCall) -> str | None:
    """Changes of the scores, and gradients, that adasplash does not know."""
    for name, given in (("softcap", call.softcap), ("position_bias", call.position_bias), ("sinks", call.s_aux)):
        if given is not None:
            return f"does not support {name}, which was given"
    keys_learn = call.key.requires_grad or call.value.requires_grad
    if torch.is_grad_enabled() and keys_learn and not call.query.requires_grad:
        return "fails where keys or values need a gradient and queries do not"
    return None


def _mask_problem(call: AttentionCall, alpha: float) -> str | None:
    """Masks that adasplash does not take, or not with heads that share keys."""
    pattern = None if call.window is not None else _pattern(call)
    if pattern is None:
        return "takes masks that hide later keys, padding on the right, or both"
    heads, key_heads = call.query.shape[1], call.key.shape[1]
    if heads != key_heads and not (pattern[0] and alpha == 1.5):
        return (
            f"shares keys between heads only at alpha = 1.5 with a causal mask, were {heads} heads to {key_heads} and "
            f"alpha = {alpha:g}"
        )
    return None


def _pattern(call: AttentionCall) -> tuple[bool, Tensor | None] | None:
    """Whether later keys are hidden, and the lengths (batch,) of sequences padded on the right; None for other masks.

    Reading the mask makes the host wait for the device.
    """
    if call.mask is None:
        return call.causal, None
    if isinstance(call.mask, BlockMask):
        return None
    visible = visible_by(call.mask)
    if visible is None:
        return None
    num_tokens = call.query.shape[2]
    visible = visible.expand(call.query.shape[0], -1, num_tokens, -1)
    lengths = visible[:, 0, -1].sum(-1, dtype=torch.int32)
    key = torch.arange(num_tokens, device=visible.device)
    inside = (key < lengths[:, None])[:, None, None]
    if call.mask.shape[2] == 1:  # the same keys for all queries: no matrix is needed
        return (call.causal, lengths) if bool((visible[:, :, :1] == inside).all()) else None
    for causal in (True, False):
        hidden = inside & (key <= key[:, None]) if causal else inside
        if bool((visible == hidden).all()):
            return causal, lengths
    return None


def adasplash_output(call: AttentionCall, alpha: float | Tensor) -> Tensor:
    """The output (batch, heads, queries, value_dim) of a call that adasplash can serve; zeros for padded queries."""
    factor = call.scaling * call.query.shape[3] ** 0.5  # beyond what adasplash scales dot products by itself
    query = call.query if abs(factor - 1) < 1e-6 else call.query * factor
    query, key, value = (x.contiguous() for x in (query, call.key, call.value))
    pattern = _pattern(call)
    assert pattern is not None
    causal, lengths = pattern
    batch, _, num_tokens, _ = query.shape
    if lengths is None and num_tokens & (num_tokens - 1):
        # adasplash needs lengths where they are no power of two.
        lengths = torch.full((batch,), num_tokens, dtype=torch.int32, device=query.device)
    attend = importlib.import_module("adasplash").adasplash
    return attend(query, key, value, alpha=alpha, is_causal=causal, varlen=lengths)
