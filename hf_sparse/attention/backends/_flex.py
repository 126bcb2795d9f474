"""entmax attention by torch's FlexAttention, for any score and mask function that it takes.

FlexAttention computes softmax, and softmax of ``P log [(alpha - 1) s - tau]_+``, ``P = 1 / (alpha - 1)``, is entmax:
its weights are ``[(alpha - 1) s - tau]_+^P`` over their sum. FlexAttention returns the logarithm of that sum with the
output, so that two calls, with P and with ``P - 1``, are one step of Newton's method for tau. The call with ``P - 1``
also averages the values with the weights of entmax's Jacobian, ``w = p^(2 - alpha)``, for the backward pass: the
derivative of the call with P, at a fixed tau, is ``w (g - <g, p>)``, and becomes entmax's ``w (g - <g, w> / <1, w>)``
when the logarithm of the sum receives the gradient ``<g, p> - <g, w> / <1, w>``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from ...functional.arguments import between, check_number
from ...functional.newton import exponent_of
from ...functional.rows import accumulation_dtype, lowest_visible
from ...kernels import HIGHEST_ALPHA, LOWEST_ALPHA
from .._call import AttentionCall

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

_MAX_STEPS = 30
# logsumexp(c x) / c lies between the largest x and log(n) / c above it.
_SHARPNESS = 64.0
# Steps need the sum of the weights, not the values: the fewest value columns that FlexAttention's kernels take.
_FEWEST_COLUMNS = 16


# torch.compile makes one graph for each score function, mask, dtype and head size, but not for each length. Beyond its
# default of eight it would silently go on uncompiled, with all scores materialized; beyond this limit it raises.
_MOST_GRAPHS = 256

_Function = TypeVar("_Function", bound=Callable[..., object])


@cache
def _engine(function: _Function, compiled: bool) -> _Function:
    """A function of FlexAttention's, compiled or not; uncompiled it materializes all scores, or the whole mask."""
    if not compiled:
        return function
    compiler: Any = torch.compile  # whose annotations omit the last two arguments
    return compiler(function, fullgraph=True, recompile_limit=_MOST_GRAPHS, isolate_recompiles=True)


def flex_entmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float = 1.5,
    *,
    score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
) -> Tensor:
    """``entmax(score_mod(scale q k^T)) v`` over the keys that ``block_mask`` makes visible.

    Args:
        query: (batch, heads, queries, head_dim), float32, bfloat16, float16, or on the CPU float64.
        key: (batch, key_heads, keys, head_dim), heads a multiple of key_heads.
        value: (batch, key_heads, keys, value_dim).
        alpha: in [1.1, 2].
        score_mod: (score, batch, head, query index, key index) -> score, as in ``flex_attention``.
        block_mask: the result of ``create_block_mask``; None for all keys.
        scale: factor on the dot products; None is ``head_dim ** -0.5``.

    Returns:
        (batch, heads, queries, value_dim) in the dtype of query; zeros for a query that sees no key. Differentiable
        once in query, key, value and the tensors that ``score_mod`` captures, as far as ``flex_attention`` is: on the
        CPU, torch refuses gradients.

    Raises:
        ValueError: an alpha out of range, or arguments that ``flex_attention`` refuses.
        NotImplementedError: gradients on the CPU.

    Source: the identity above; Newton's method as in ``entmax``.
    Cost: two calls of ``flex_attention`` for each of three to ten steps, and two more. On a GPU it is compiled at the
        first call, and memory is O(queries); the host waits for each step. On the CPU all scores are materialized.

    >>> import torch
    >>> q = torch.tensor([[[[4.0]]]])
    >>> k = v = torch.tensor([[[[1.0], [0.5], [-1.0]]]])
    >>> flex_entmax_attention(q, k, v, 2.0, score_mod=lambda score, b, h, i, j: score / 2)
    tensor([[[[1.]]]])
    """
    check_number("alpha", alpha, *between(LOWEST_ALPHA, HIGHEST_ALPHA))
    precision = accumulation_dtype(query)
    # Tensors, not numbers: another alpha must not compile again.
    factor, exponent = (torch.tensor(x, dtype=precision, device=query.device) for x in (alpha - 1, exponent_of(alpha)))
    engine = _engine(flex_attention, query.is_cuda)

    def attend(value: Tensor, change: ScoreMod) -> tuple[Tensor, Tensor]:
        """Values averaged with weights ``exp(change(score))``, and the logarithm of the sum of the weights."""
        # Detached, so that the search for tau is one graph whether or not the queries need a gradient.
        q, k, v = (x if torch.is_grad_enabled() else x.detach() for x in (query, key, value))

        def changed(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return change(score if score_mod is None else score_mod(score, b, h, i, j), b, h, i, j)

        out, found = engine(
            q, k, v, score_mod=changed, block_mask=block_mask, scale=scale,
            enable_gqa=query.shape[1] != key.shape[1], return_aux=AuxRequest(lse=True),
        )  # fmt: skip
        return out, found.lse

    def sharpened(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score * (factor * _SHARPNESS)

    def weighted(value: Tensor, tau: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
        """``attend`` with weights ``[(alpha - 1) score - tau]_+^power``."""

        def logarithm(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            u = score * factor - tau[b, h, i]
            return torch.where(u > 0, torch.log(torch.where(u > 0, u, 1.0)) * power, -torch.inf)

        return attend(value, logarithm)

    with torch.no_grad():
        few = value[..., :_FEWEST_COLUMNS]
        top = (attend(few, sharpened)[1] - math.log(key.shape[2])) / _SHARPNESS
        # Above every score where no key is visible.
        tau = torch.where(top > -torch.inf, top - 1, torch.finfo(top.dtype).max)
        for _ in range(_MAX_STEPS):
            mass, slope = (weighted(few, tau, power)[1].exp() for power in (exponent, exponent - 1))
            if not bool((mass > 1 + 8 * torch.finfo(precision).eps).any()):
                break
            tau = tau + (mass - mass.pow(2 - alpha)).clamp(min=0) / slope.clamp(min=1e-30)
    out, log_mass = weighted(value, tau, exponent)
    if torch.is_grad_enabled() and out.requires_grad:
        with torch.no_grad():
            of_slope, _ = weighted(value, tau, exponent - 1)
        out = _FollowThreshold.apply(out, log_mass, of_slope)
    return out


class _FollowThreshold(torch.autograd.Function):
    """Identity in the forward pass; the backward pass corrects, through the mass, for the tau that was held fixed."""

    @staticmethod
    def forward(ctx, out: Tensor, log_mass: Tensor, of_slope: Tensor) -> Tensor:
        ctx.save_for_backward(out - of_slope)
        ctx.dtype = log_mass.dtype
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (difference,) = ctx.saved_tensors
        return grad, (grad.to(ctx.dtype) * difference).sum(-1), None


def flex_problem(call: AttentionCall, alpha: float | Tensor) -> str | None:
    """The reason why FlexAttention cannot serve a call of entmax, or None."""
    if torch.is_tensor(alpha):
        return "takes one number for alpha, was one per head"
    if not LOWEST_ALPHA <= alpha <= HIGHEST_ALPHA:
        return f"takes alpha in [{LOWEST_ALPHA}, {HIGHEST_ALPHA}], was {alpha:g}"
    if call.s_aux is not None:
        return "has no sinks, and some were given"
    tensors = (call.query, call.key, call.value)
    if call.query.device.type == "cpu" and torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return "is torch's FlexAttention, which gives no gradients on the CPU"
    return None


def flex_output(call: AttentionCall, alpha: float | Tensor) -> Tensor:
    """The output (batch, heads, queries, value_dim) of a call that FlexAttention can serve."""
    assert not torch.is_tensor(alpha)
    batch, heads, queries, _ = call.query.shape
    shape = (batch, heads, queries, call.key.shape[2])
    added = [] if call.position_bias is None else [call.position_bias.expand(shape)]
    # A tensor, not a number: torch makes a second softcap a symbol, which FlexAttention refuses (torch 2.15).
    softcap = (
        None if call.softcap is None else call.query.new_tensor(call.softcap, dtype=accumulation_dtype(call.query))
    )
    block_mask = visible = None
    if isinstance(call.mask, BlockMask):
        block_mask = call.mask
    elif call.mask is not None:
        visible = call.mask
        if visible.dtype != torch.bool:
            visible = call.mask > lowest_visible(call.mask.dtype)
            added.append(call.mask.masked_fill(~visible, 0.0).expand(shape))
        visible = visible.expand(batch, -1, queries, -1)
    if call.causal or visible is not None:
        block_mask = _blocks(visible, call.causal, call.window, shape, call.query.device)

    def modified(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        for bias in added:
            score = score + bias[b, h, i, j]
        return score

    score_mod = modified if added or softcap is not None else None
    return flex_entmax_attention(
        call.query, call.key, call.value, alpha, score_mod=score_mod, block_mask=block_mask, scale=call.scaling
    )


def _blocks(
    visible: Tensor | None, causal: bool, window: int | None, shape: tuple[int, int, int, int], device: torch.device
) -> BlockMask:
    """The block mask of a boolean mask (batch or 1, heads or 1, queries, keys), of causality, and of a window."""
    per_batch, per_head = (visible is not None and visible.shape[axis] > 1 for axis in (0, 1))
    ahead = shape[3] - shape[2]

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        shown = j >= 0 if visible is None else visible[b if per_batch else 0, h if per_head else 0, i, j]
        if causal:
            shown = shown & (j <= i + ahead)
        return shown if window is None else shown & (j > i + ahead - window)

    create = _engine(create_block_mask, device.type == "cuda")
    return create(mask_mod, shape[0] if per_batch else None, shape[1] if per_head else None, *shape[2:], device=device)
