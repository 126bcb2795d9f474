"""The attention function that Transformers calls for a sparse model, registered with its mask function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.generation.continuous_batching import PagedAttentionCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.output_capturing import _active_collector

from ..tracing import in_graph
from ._call import Arguments, AttentionCall
from ._scores import grouped_product, scores_of_call
from .backends import output_without_weights
from .find import mixes_layers, own_attention
from .mask import PatternMask
from .sequential import sequential_weights
from .site import SITE, AttentionSite, weigh

NAME = "hf_sparse"
PACKED = ("cu_seq_lens_q", "cu_seq_lens_k")  # where sequences begin in a row, for flash attention
# Scores that are computed at a time where only observers want weights: half a gigabyte in float32.
_SHOWN_AT_ONCE = 1 << 27


def sparse_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    indices: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention with the map that ``sparsify`` chose for ``module``; Transformers calls it.

    Mixtures of layers (``mixes_layers``) keep the softmax of their own file.

    Args:
        module: the attention module; it carries its site.
        query: (batch, heads, queries, head_dim).
        key: (batch, key_value_heads, keys, head_dim); heads share keys by groups where there are fewer.
        value: (batch, key_value_heads, keys, value_dim).
        attention_mask: see ``attention_scores``; or the result of ``pattern_mask``, or a ``BlockMask``.
        dropout: probability of dropping a weight while ``module`` trains; sixth, as in Transformers' SDPA attention.
        scaling: factor on the dot products; None is ``head_dim ** -0.5``.
        softcap: bound on scores (Gemma 2).
        position_bias: added to scores (T5).
        s_aux: (heads,) score of a sink that takes weight and gives nothing (gpt-oss).
        sinks: the same, one for each query: (batch, heads, queries, 1) (Inkling 2).
        indices: (batch, queries, k) keys that an indexer selected; all others are masked (DeepSeek V3.2).
        is_causal: only consulted where there is no mask.
        **others: other arguments of the model. Sequential attention reads some of them (see
            ``sequential_weights``); those named by the model's own eager attention are refused.

    Returns:
        Output (batch, queries, heads, value_dim) and weights (batch, heads, queries, keys); weights are None where a
        backend without weights computed the output. See ``set_impl``.

    Raises:
        RuntimeError: ``module`` carries no site.
        ValueError: ``set_impl`` asked for a backend that cannot serve this call; sinks for a map that is elementwise;
            more keys than the mask has; packed sequences without a mask that keeps them apart; or see
            ``sequential_weights``.
        NotImplementedError: the model passes an argument that would change the weights and is not supported here.
    """
    if mixes_layers(type(module)):
        further = {
            "softcap": softcap,
            "position_bias": position_bias,
            "s_aux": s_aux,
            "sinks": sinks,
            "indices": indices,
        }
        others |= {name: value for name, value in further.items() if value is not None}
        own = own_attention(module)
        return own(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **others)
    site = _site_of(module, others)
    _check_sinks(module, site, s_aux, sinks)
    paged = others.get("cache")
    if isinstance(paged, PagedAttentionCache):  # of generate_batch in Transformers 5.23, where attention extends it
        key, value = paged.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=others)
    _check_keys(module, key, attention_mask)
    _check_packed(module, key, attention_mask, others)
    call = AttentionCall(
        query=query,
        key=key,
        value=value,
        mask=attention_mask,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        causal=attention_mask is None and bool(is_causal) and query.shape[2] > 1,
        dropout=dropout if module.training else 0.0,
        softcap=softcap,
        position_bias=position_bias,
        s_aux=s_aux,
        query_sinks=sinks,
        indices=indices,
        wants_weights=_wants_weights(module, others),
        others=others,
    )
    output = output_without_weights(module, call)
    if output is not None:
        if site.observers.of(module):
            _show_weights(module, call)
        return output, None
    weights = _weights(module, call)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return grouped_product(weights, value).transpose(1, 2).contiguous(), weights


def foreign_attention(module: nn.Module) -> str | None:
    """The name of a module's attention implementation if its function, or that of its masks, is of somebody's own.

    What such a function does beside softmax (a bias, a window) would be lost where sparse attention takes its place.
    Kernels of the Hub, whose names have a slash, compute plain attention.
    """
    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if not isinstance(name, str) or name == NAME or "/" in name:
        return None
    for registry in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
        function = registry.get(name)
        if function is not None and not getattr(function, "__module__", "").startswith("transformers."):
            return name
    return None


@torch.no_grad()
def _show_weights(module: nn.Module, call: AttentionCall) -> None:
    """Show observers the weights of a call whose output a backend computed without them.

    The output stays the backend's, so that activation checkpointing, which calls again when nobody looks any more,
    computes the same.
    """
    for part in call.parts(_SHOWN_AT_ONCE):
        _weights(module, part)


def _weights(module: nn.Module, call: AttentionCall) -> Tensor:
    """The weights (batch, heads, queries, keys) of a call, which observers see."""
    site: AttentionSite = module.__dict__[SITE]
    num_keys = call.key.shape[2]
    scores = scores_of_call(call.with_matrix())
    weights = sequential_weights(module, call, scores) if site.is_sequential else weigh(module, scores)
    weights = weights[..., :num_keys]
    for observer in site.observers.of(module):
        observer.add(module, scores[..., :num_keys], weights)
    return weights


def _site_of(module: nn.Module, others: Arguments) -> AttentionSite:
    """The site of a module; refuses arguments that the model's own attention would have honoured."""
    site = module.__dict__.get(SITE)
    if site is None:
        raise RuntimeError(
            f"{type(module).__name__} has attn_implementation={NAME!r} but was never given a map, which only a "
            "checkpoint that was saved sparse brings; load the model without that name and call "
            "hf_sparse.sparsify(model, attn=...)"
        )
    for name, given in others.items():
        if given is not None and name in site.named_arguments:
            raise NotImplementedError(
                f"{type(module).__name__} passes {name!r} to its attention, which hf_sparse does not honour; "
                "leave this model's attention as it is (attn=None)"
            )
    return site


def _check_sinks(module: nn.Module, site: AttentionSite, *sinks: Tensor | None) -> None:
    """Refuse sinks beside weights that no other score takes anything from."""
    is_elementwise = site.map_config is not None and site.map_config.map.elementwise
    if is_elementwise and any(each is not None for each in sinks):
        assert site.map_config is not None
        raise ValueError(
            f"{type(module).__name__} has attention sinks, which take nothing from the weights of "
            f"{site.map_config.name}; choose a map whose weights compete, as softpick, or attn=None"
        )


def _check_keys(module: nn.Module, key: Tensor, mask: Tensor | None) -> None:
    """Refuse keys that came to be after the mask did. Not in a graph, in which lengths may be symbols."""
    if not in_graph() and isinstance(mask, Tensor) and 1 < mask.shape[-1] < key.shape[2]:
        raise ValueError(
            f"{type(module).__name__} has {key.shape[2]} keys and a mask for {mask.shape[-1]}: activation "
            "checkpointing around its layer runs it again, and the cache takes the same keys twice; set "
            "model.config.use_cache = False for training"
        )


def _check_packed(module: nn.Module, key: Tensor, mask: Tensor | None, others: Arguments) -> None:
    """Refuse sequences packed into a row whose mask knows nothing of them, as BERT's, which heeds no positions.

    No mask, or one with the pattern of a single sequence, does not keep them apart; any other is trusted. Lengths for
    another number of keys are those of other attention: models hand them on to the encoders of their images. A graph
    that is being compiled has no number to look at, and is not refused.
    """
    starts = next((others[name] for name in reversed(PACKED) if others.get(name) is not None), None)
    if in_graph() or starts is None or len(starts) < 3 or not (mask is None or isinstance(mask, PatternMask)):
        return
    if int(starts[-1]) == key.shape[2]:
        raise ValueError(
            f"{type(module).__name__} does not read cu_seq_lens, and the model made it no mask of the sequences in a "
            "row, which would attend to each other: give a mask (1, 1, queries, keys), or one sequence in each row"
        )


def _wants_weights(module: nn.Module, others: Arguments) -> bool:
    """Whether the call, or else the configuration, asks for the weights.

    Some modules keep the argument to themselves (GPT-2's, OPT's) or are given none (SigLIP's): Transformers, which
    collects what they return, knows.
    """
    configured = getattr(getattr(module, "config", None), "output_attentions", False)
    return bool(others.get("output_attentions", configured)) or any("attentions" in name for name in _collected())


def _collected() -> Iterable[str]:
    """What Transformers collects of the running call. A compiler cannot ask, unless it compiles the collecting too."""
    if in_graph() and not _active_collector.compiling:
        return ()
    return _active_collector.get() or ()
