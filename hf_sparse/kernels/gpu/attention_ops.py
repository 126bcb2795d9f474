"""Flash entmax as an operator of torch, with its derivative and what a compiler needs to know of its results."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ._attention import Scores, backward, forward, tiles_for, unit


@torch.library.custom_op("hf_sparse::entmax_attention", mutates_args=())
def entmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    exponent: int,
    scaling: float,
    softcap: float | None,
    causal: bool,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``forward`` of ``_attention``, with the fields of ``Scores`` one by one."""
    return forward(q, k, v, Scores(alpha, exponent, scaling, causal, window, softcap, bias, mask, sinks))


@entmax_attention.register_fake
def _(q, k, v, alpha, sinks, bias, mask, exponent, scaling, softcap, causal, window):
    batch, heads, num_queries, head_dim = q.shape
    tiles = tiles_for(head_dim, v.shape[3], q.dtype)
    out = q.new_empty(batch, num_queries, heads, v.shape[3]).transpose(1, 2)
    num_tiles = triton.cdiv(num_queries, tiles.queries), triton.cdiv(k.shape[2], tiles.keys)
    live = q.new_empty((batch, heads, *num_tiles), dtype=torch.int8)
    return out, q.new_empty((batch, heads, num_queries), dtype=torch.float32), live


@torch.library.custom_op("hf_sparse::entmax_attention_gradients", mutates_args=())
def entmax_attention_gradients(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tau: Tensor,
    live: Tensor,
    alpha: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    exponent: int,
    scaling: float,
    softcap: float | None,
    causal: bool,
    window: int | None,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``backward`` of ``_attention``; the gradients of alpha and of sinks are empty where there is none."""
    scores = Scores(alpha, exponent, scaling, causal, window, softcap, bias, mask, sinks)
    dq, dk, dv, dalpha, dsinks = backward(dout, q, k, v, tau, live, scores, learned)
    dalpha, dsinks = (q.new_empty(0) if gradient is None else gradient for gradient in (dalpha, dsinks))
    return dq, dk, dv, dalpha, dsinks


@entmax_attention_gradients.register_fake
def _(
    dout, q, k, v, tau, live, alpha, sinks, bias, mask, exponent, scaling, softcap, causal, window, learned
):  # fmt: skip
    dq, dk, dv = (torch.empty_like(unit(x)) for x in (q, k, v))
    dalpha = torch.empty_like(alpha) if learned else q.new_empty(0)
    return dq, dk, dv, dalpha, q.new_empty(0) if sinks is None else torch.empty_like(sinks)


def _save(ctx, inputs, output) -> None:
    *tensors, exponent, scaling, softcap, causal, window = inputs
    _, tau, live = output
    ctx.mark_non_differentiable(tau, live)
    ctx.settings = exponent, scaling, softcap, causal, window
    ctx.save_for_backward(*tensors, tau, live)


def _differentiate(ctx, dout, _dtau, _dlive):
    q, k, v, alpha, sinks, bias, mask, tau, live = ctx.saved_tensors
    learned = ctx.needs_input_grad[3]
    *of_qkv, of_alpha, of_sinks = entmax_attention_gradients(
        dout, q, k, v, tau, live, alpha, sinks, bias, mask, *ctx.settings, learned
    )
    return *of_qkv, of_alpha if learned else None, None if sinks is None else of_sinks, *[None] * 7


entmax_attention.register_autograd(_differentiate, setup_context=_save)
