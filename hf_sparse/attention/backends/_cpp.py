"""entmax attention on CPUs by this package's C++ kernel, which never holds the scores of more than a few queries."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from ...functional import entmax
from ...functional.rows import is_final, is_transformed, lowest_visible
from ...kernels import (
    BUILD_FROM,
    Scores,
    attend_few,
    attention_alpha_problem,
    cpp_attention_backward,
    cpp_attention_forward,
    cpp_attention_problem,
    cpp_available,
)
from ...tracing import in_graph
from .._call import AttentionCall
from .._scores import biased_scores, grouped_product, with_head_sinks
from ._prepared import needs_gradient

# Fewer queries than this fill too little of a tile, and fewer scores take less time than the call itself.
_FEWEST_QUERIES, _FEWEST_SCORES = 32, 1 << 15
# Up to so many queries are taken key by key, and value by value of the support; more of them torch multiplies faster.
_MOST_OF_FEW = 4
# So many calls by torch lose about as much time as the kernel takes to be built: some 500 tokens of 30 layers.
_MANY_CALLS = 1 << 14
_calls_without_kernel = itertools.count(1)


def cpp_problem(call: AttentionCall, alpha: float | Tensor) -> str | None:
    """The reason why the kernel cannot serve a call of entmax, or None; a missing compiler is none."""
    if isinstance(call.mask, BlockMask):
        return "takes a matrix for a mask, was a BlockMask"
    if in_graph() or is_transformed(call.query, call.key, call.value):
        return "cannot be traced, compiled or transformed"
    low, high = map(float, alpha.detach().aminmax()) if torch.is_tensor(alpha) else (alpha, alpha)
    return attention_alpha_problem(low, high) or cpp_attention_problem(call.query, call.key, call.value, call.s_aux)


def cpp_is_first(call: AttentionCall) -> bool:
    """Whether a call on a CPU is such that the kernel is faster than torch; never in a graph."""
    if call.query.device.type != "cpu" or in_graph():
        return False
    fills_tiles = call.query.shape[2] >= _FEWEST_QUERIES and _num_scores(call) >= _FEWEST_SCORES
    return fills_tiles or _has_few_queries(call)


def _has_few_queries(call: AttentionCall) -> bool:
    """Whether a call is that of a decoding step."""
    tensors = (call.query, call.key, call.value, call.s_aux, call.temperature)
    return call.query.shape[2] <= _MOST_OF_FEW and not any(map(needs_gradient, tensors))


def cpp_is_automatic(call: AttentionCall) -> bool:
    """Whether the kernel is built, or worth building for a call that it can serve, or for the many before it.

    Activation checkpointing computes a call with gradients again, when the loss may have built the kernel: it must be
    the same computation.
    """
    if cpp_available(build=torch.is_grad_enabled() or _num_scores(call) >= BUILD_FROM):
        return True
    return next(_calls_without_kernel) >= _MANY_CALLS and cpp_available(build=True)


def _num_scores(call: AttentionCall) -> int:
    return call.query.shape[:3].numel() * call.key.shape[2]


def cpp_output(call: AttentionCall, alpha: float | Tensor) -> Tensor:
    """The output (batch, heads, queries, value_dim) of a call that the kernel can serve."""
    if _has_few_queries(call) and not needs_gradient(alpha):
        return attend_few(call.query, call.key, call.value, *kernel_scores(call, alpha))
    numbers, alphas, temperatures, bias = _arguments(call, alpha)
    tensors = (alphas, call.s_aux, bias, _hidden(call.mask), temperatures)
    return _Attention.apply(call.query, call.key, call.value, *tensors, numbers)


def kernel_scores(call: AttentionCall, alpha: float | Tensor) -> tuple[Scores, Tensor]:
    """What the kernel is told about the scores of a call without gradients, and the temperatures (heads,)."""
    numbers, alphas, temperatures, bias = _arguments(call, alpha)
    return numbers.scores(alphas, call.s_aux, bias, _hidden(call.mask)), temperatures


def _arguments(call: AttentionCall, alpha: float | Tensor) -> tuple[_Numbers, Tensor, Tensor, Tensor | None]:
    """The numbers of a call, its alphas and temperatures (heads,), and what is added to scores for their position."""
    alphas, temperatures = (
        x.float() if torch.is_tensor(x) else call.query.new_full((call.query.shape[1],), x, dtype=torch.float32)
        for x in (alpha, call.temperature)
    )
    bias = None if call.position_bias is None else call.position_bias.detach()
    return _Numbers(call.scaling, call.causal, call.window, call.softcap), alphas, temperatures, bias


def _hidden(mask: Tensor | BlockMask | None) -> Tensor | None:
    """A mask with ``-inf`` wherever a key is hidden."""
    assert not isinstance(mask, BlockMask)  # refused by cpp_problem
    if mask is None or mask.dtype == torch.bool:
        return mask
    mask = mask.detach()
    return torch.where(mask > lowest_visible(mask.dtype), mask, -torch.inf)


class _Numbers(NamedTuple):
    """The arguments of a call that are no tensors."""

    scaling: float
    causal: bool
    window: int | None
    softcap: float | None

    def scores(self, alpha: Tensor, sinks: Tensor | None, bias: Tensor | None, mask: Tensor | None) -> Scores:
        """What the kernel is told about the scores."""
        return Scores(alpha, 0.0, self.scaling, self.causal, self.window, self.softcap, bias, mask, sinks)


class _Attention(torch.autograd.Function):
    """Attention by the kernel; its second derivative by torch."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        alpha: Tensor,
        sinks: Tensor | None,
        bias: Tensor | None,
        mask: Tensor | None,
        temperature: Tensor,
        numbers: _Numbers,
    ) -> Tensor:
        out, tau = cpp_attention_forward(q, k, v, numbers.scores(alpha, sinks, bias, mask), temperature)
        ctx.save_for_backward(q, k, v, alpha, sinks, bias, mask, temperature, tau)
        ctx.numbers = numbers
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, alpha, sinks, bias, mask, temperature, tau = ctx.saved_tensors
        if not is_final(dout):  # a second derivative, or many at once
            with torch.enable_grad():
                return *_gradients_by_torch(ctx, dout), None, None, None, None
        scores = ctx.numbers.scores(alpha, sinks, bias, mask)
        learned = ctx.needs_input_grad[3]
        found = cpp_attention_backward(dout, q, k, v, tau, scores, temperature, learned)
        return *found, None, None, None, None


def _gradients_by_torch(ctx: Any, dout: Tensor) -> list[Tensor | None]:
    """The derivatives of all tensors, with a graph of their own, through the matrix of scores."""
    q, k, v, alpha, sinks, bias, mask, temperature, _ = ctx.saved_tensors
    numbers: _Numbers = ctx.numbers
    scores = biased_scores(grouped_product(numbers.scaling * q, k.mT), mask, numbers.softcap, bias)
    if numbers.causal:
        scores = scores.masked_fill(_hidden_by_order(q.shape[2], k.shape[2], numbers.window), -torch.inf)
    if sinks is not None:
        scores = with_head_sinks(scores, sinks)
    weights = entmax(scores / temperature.view(-1, 1, 1), alpha.view(-1, 1, 1), impl="torch")
    out = grouped_product(weights[..., : k.shape[2]].to(v.dtype), v)
    wanted = [x if needed else None for x, needed in zip((q, k, v, alpha, sinks), ctx.needs_input_grad)]
    given = [x for x in wanted if x is not None]
    gradients = iter(torch.autograd.grad(out, given, dout, create_graph=True))
    return [None if x is None else next(gradients) for x in wanted]


def _hidden_by_order(num_queries: int, num_keys: int, window: int | None) -> Tensor:
    """The keys (queries, keys) after a query, which is one of the last, and those before its window."""
    back = torch.arange(num_keys - num_queries, num_keys, device="cpu")[:, None] - torch.arange(num_keys, device="cpu")
    return back < 0 if window is None else (back < 0) | (back >= window)
